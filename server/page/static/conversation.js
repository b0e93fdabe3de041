// A conversation as a tree: an edit or a second reply begins a sibling, and one path is shown. Pure data.

/** A new id. (crypto.randomUUID is only there on secure origins, and a server in the house may not be one.) */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Conversation {
  constructor(saved = {}) {
    this.id = saved.id ?? newId();
    this.session = saved.session ?? `page-${newId()}`;
    this.title = saved.title ?? "New conversation";
    this.nodes = saved.nodes ?? {}; // id -> {id, parent, message, plan?, ...}
    this.chosen = saved.chosen ?? {}; // parent id -> the child that is shown
  }

  /** The children of a node, oldest first; of the root for null. */
  children(parent) {
    return Object.values(this.nodes).filter((node) => node.parent === parent);
  }

  /** The nodes that are shown, from the first message on. */
  path() {
    const shown = [];
    for (let id = this.chosen.root ?? null; id; id = this.chosen[id] ?? null) shown.push(this.nodes[id]);
    return shown;
  }

  /** Put `message` behind `parent` (null for the first) and show it. */
  add(parent, message) {
    const node = { id: newId(), parent, message };
    this.nodes[node.id] = node;
    this.choose(node);
    if (this.title === "New conversation" && message.role === "user") this.title = message.content.slice(0, 60);
    return node;
  }

  choose(node) {
    this.chosen[node.parent ?? "root"] = node.id;
  }

  /** Forget a node that nothing came of. */
  remove(node) {
    delete this.nodes[node.id];
    const rest = this.children(node.parent);
    if (rest.length) this.choose(rest.at(-1));
    else delete this.chosen[node.parent ?? "root"];
  }

  /** The node `step` siblings on, or undefined. */
  sibling(node, step) {
    const all = this.children(node.parent);
    return all[all.indexOf(node) + step];
  }

  /** A conversation of its own that begins with the shown messages up to `last`. It stays in the same slot, which
      keeps several conversations, so that nothing before the branch is read again. */
  branch(last) {
    const twin = new Conversation({ session: this.session });
    let parent = null;
    for (const node of this.path()) {
      parent = twin.add(parent, structuredClone(node.message)).id;
      twin.nodes[parent].plan = node.plan;
      if (node === last) break;
    }
    twin.title = `${this.title} (branch)`;
    return twin;
  }

  /** What the API is sent: the shown messages, `system` in front if there is one. */
  messages(system) {
    const told = this.path().map((node) => node.message);
    return system ? [{ role: "system", content: system }, ...told] : told;
  }
}

const KEY = "crossturn.conversations";

/** The conversations that this browser keeps. */
export function load() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "[]").map((saved) => new Conversation(saved));
  } catch {
    return [];
  }
}

export function save(conversations) {
  try {
    localStorage.setItem(KEY, JSON.stringify(conversations));
  } catch {
    // Storage is full or switched off: the page works on without it.
  }
}
