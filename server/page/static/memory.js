// The panel of slots: what the server remembers, drawn to scale, and what can be done with it.
import { $, bytes, count, el, seconds } from "./dom.js";

/** Draw `list`, the body of GET /v1/slots. `names` maps slot ids to this page's titles; `actions`: forget, fork, exportSlot. */
export function drawMemory(list, names, actions) {
  const meter = el("meter", { min: 0, max: list.budget_bytes, value: list.bytes, "aria-label": "Memory in use" });
  $("budget").replaceChildren(meter, el("p", { class: "quiet",
    text: `${bytes(list.bytes)} of ${bytes(list.budget_bytes)}, the server's budget` }));
  const longest = Math.max(1, ...list.data.flatMap((slot) => slot.entries.map((entry) => entry.tokens)));
  const slots = list.data.map((slot) => slotView(slot, names.get(slot.slot), longest, actions));
  $("slots").replaceChildren(...(slots.length ? slots : [el("li", { class: "quiet", text: "Nothing is remembered yet." })]));
}

function slotView(slot, name, longest, actions) {
  const button = (text, act) => el("button", { type: "button", text, "aria-label": `${text} slot ${slot.slot}`, onclick: () => act(slot) });
  return el("li", { "data-slot": slot.slot },
    el("h3", { text: name ?? `Slot ${slot.slot}` }),
    el("p", { class: "quiet", text: `${count(slot.tokens)} tokens, ${bytes(slot.bytes)}` }),
    el("ul", {}, ...tree(slot).map(({ entry, depth }) => entryView(entry, depth, longest))),
    el("div", { class: "actions" }, button("Fork", actions.fork), button("Export", actions.exportSlot), button("Forget", actions.forget)));
}

/** The entries of a slot with their children behind them, as many steps in as they have ancestors here. */
function tree(slot, parent = null, depth = 0) {
  const nameOf = (entry) => `${slot.slot}/${entry.number}`;
  const known = new Set(slot.entries.map(nameOf));
  const isChild = (entry) => (parent === null ? !known.has(entry.parent) : entry.parent === parent);
  return slot.entries.filter(isChild).flatMap((entry) => [{ entry, depth }, ...tree(slot, nameOf(entry), depth + 1)]);
}

function entryView(entry, depth, longest) {
  const line = el("div", { class: "line", role: "img", "aria-label":
    `${entry.tokens} tokens with ${entry.checkpoints.length} checkpoints at ${entry.checkpoints.join(", ") || "none"}` });
  line.style.width = `${(100 * entry.tokens) / longest}%`;
  for (const position of entry.checkpoints) {
    const mark = el("i", { title: `checkpoint at token ${count(position)}` });
    mark.style.left = `${(100 * position) / entry.tokens}%`;
    line.append(mark);
  }
  const age = entry.running ? "in use" : `idle for ${seconds(entry.idle_s)}`;
  const branched = entry.parent ? `, branched off ${depth > 0 ? "the one above" : entry.parent}` : "";
  const item = el("li", {}, line, el("p", { class: "quiet",
    text: `${count(entry.tokens)} tokens, ${entry.checkpoints.length} checkpoints, ${bytes(entry.bytes)}, ${age}${branched}` }));
  item.style.marginLeft = `${depth}rem`;
  return item;
}
