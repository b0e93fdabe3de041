// Shows one path through a conversation. Tells the page what people want by `actions`.
import { el } from "./dom.js";
import { markdown } from "./markdown.js";
import { strip } from "./strip.js";

const WHO = { user: "You", assistant: "Model", tool: "Tool result", system: "System" };

/** The element of one message. `actions`: edit, regenerate, branch, choose, answerCall. */
export function messageView(node, conversation, actions, rate) {
  const { message } = node;
  const view = el("article", { class: `message ${message.role}`, "data-id": node.id },
    el("h3", { class: "who", text: WHO[message.role] }),
    el("div", { class: "body" }));
  fill(view, node);
  view.append(buttons(node, conversation, actions));
  const pending = pendingCalls(node, conversation);
  for (const call of pending) view.querySelector(`[data-call="${CSS.escape(call.id)}"]`)?.append(answerForm(call, node, actions));
  if (node.plan) view.append(strip(node.plan, node.nWritten ?? 0, node.firstTokenS, rate));
  return view;
}

/** Put what `node` says so far into its view; cheap enough for every chunk of a stream. */
export function fill(view, node) {
  const body = view.querySelector(".body");
  const { message } = node;
  const wasOpen = body.querySelector(".thought")?.open ?? false;
  body.replaceChildren();
  const thought = message.reasoning_content;
  if (thought) {
    const folded = el("details", { class: "thought" },
      el("summary", { text: message.content || message.tool_calls ? "Thought" : "Thinking…" }),
      el("div", { text: thought.trim() }));
    folded.open = wasOpen;
    body.append(folded);
  }
  if (message.content) {
    const text = message.role === "assistant" ? markdown(message.content) : [el("p", { text: message.content })];
    body.append(el("div", { class: "text" }, ...text));
  }
  for (const call of message.tool_calls ?? []) {
    body.append(el("div", { class: "call", "data-call": call.id },
      el("strong", { text: `Calls ${call.function.name}` }),
      el("pre", {}, el("code", { text: pretty(call.function.arguments) }))));
  }
  if (node.error) body.append(el("p", { class: "error", role: "alert", text: node.error }));
  if (node.stopped) body.append(el("p", { class: "quiet", text: "Stopped." }));
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function buttons(node, conversation, actions) {
  const row = el("div", { class: "actions" });
  const { role } = node.message;
  const siblings = conversation.children(node.parent);
  if (siblings.length > 1) {
    const position = siblings.indexOf(node);
    row.append(
      el("button", { type: "button", "aria-label": "Previous version", disabled: position === 0, text: "‹",
        onclick: () => actions.choose(conversation.sibling(node, -1)) }),
      el("span", { class: "version", text: `${position + 1} of ${siblings.length}` }),
      el("button", { type: "button", "aria-label": "Next version", disabled: position === siblings.length - 1, text: "›",
        onclick: () => actions.choose(conversation.sibling(node, 1)) }));
  }
  if (role === "user") row.append(el("button", { type: "button", text: "Edit", onclick: () => actions.edit(node) }));
  if (role === "assistant") {
    row.append(
      el("button", { type: "button", text: "Regenerate", onclick: () => actions.regenerate(node) }),
      el("button", { type: "button", text: "Branch from here", onclick: () => actions.branch(node) }),
      el("button", { type: "button", text: "Copy", onclick: () => navigator.clipboard?.writeText(node.message.content ?? "") }));
  }
  return row;
}

/** The calls of `node` that have no result yet on the shown path. */
export function pendingCalls(node, conversation) {
  if (node.streaming || node.message.role !== "assistant") return [];
  const path = conversation.path();
  const answered = new Set(path.map((other) => other.message.tool_call_id).filter(Boolean));
  return (node.message.tool_calls ?? []).filter((call) => !answered.has(call.id));
}

function answerForm(call, node, actions) {
  const input = el("input", { "aria-label": `Result of ${call.function.name}`, placeholder: "Its result" });
  return el("form", { onsubmit: (event) => {
    event.preventDefault();
    actions.answerCall(node, call, input.value);
  } }, input, el("button", { type: "submit", text: "Send result" }));
}
