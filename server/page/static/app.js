// The page: conversations on the left, one of them in the middle, the server's memory on the right.
import { Api, ApiError } from "./api.js";
import { Conversation, load, save } from "./conversation.js";
import { $, el } from "./dom.js";
import { drawNumbers } from "./live.js";
import { drawMemory } from "./memory.js";
import { Settings } from "./settings.js";
import { fill, messageView, pendingCalls } from "./thread.js";

const api = new Api();
const settings = new Settings();
const conversations = load();
let current = conversations[0] ?? begin();
let running = null; // the AbortController of the reply that is being written
let editing = null; // the message that the composer replaces
let rate = null; // tokens that the server reads a second, learned from longer prompts
const slotNames = new Map();

function begin() {
  const conversation = new Conversation();
  conversations.unshift(conversation);
  return conversation;
}

// -- drawing ------------------------------------------------------------------------------------

function drawSidebar() {
  $("conversations").replaceChildren(...conversations.map((conversation) => el("li", {},
    el("button", { type: "button", text: conversation.title, "aria-current": conversation === current ? "true" : undefined,
      onclick: () => show(conversation) }),
    el("button", { type: "button", text: "×", "aria-label": `Delete ${conversation.title}`, onclick: () => forget(conversation) }))));
}

function drawThread() {
  const path = current.path();
  for (const node of path) if (node.plan) slotNames.set(node.plan.slot, current.title);
  $("thread").replaceChildren(...(path.length ? path.map((node) => messageView(node, current, actions, rate)) : [welcome()]));
  $("thread").scrollTop = $("thread").scrollHeight;
}

function welcome() {
  return el("div", { class: "welcome" }, el("h2", { text: "Say something" }),
    el("p", { class: "quiet", text: "Under every reply a strip shows what the server remembered and what it had to read." }));
}

function draw() {
  drawSidebar();
  drawThread();
  save(conversations);
}

function show(conversation) {
  running?.abort();
  current = conversation;
  stopEditing();
  $("sidebar").classList.remove("open");
  draw();
  $("prompt").focus();
}

function forget(conversation) {
  conversations.splice(conversations.indexOf(conversation), 1);
  if (conversation === current) show(conversations[0] ?? begin());
  else draw();
}

function say(text) {
  $("status").textContent = text;
}

// -- turns --------------------------------------------------------------------------------------

/** Ask for a reply to what is shown, and put it behind `parent`. */
async function reply(parent) {
  const conversation = current;
  let body;
  try {
    body = { messages: conversation.messages(settings.values.system), return_progress: true, ...settings.fields };
  } catch (error) {
    return settings.open(takeKey, String(error.message));
  }
  const node = conversation.add(parent.id, { role: "assistant", content: "" });
  node.streaming = true;
  drawThread();
  const view = $("thread").lastElementChild;
  view.setAttribute("aria-busy", "true");
  running = new AbortController();
  setRunning(true);
  try {
    await stream(body, conversation, node, view, running.signal);
  } catch (error) {
    if (error.name === "AbortError") node.stopped = true;
    else fail(error, node);
  }
  finish(node, conversation);
}

async function stream(body, conversation, node, view, signal) {
  const begun = performance.now();
  for await (const chunk of api.chat(body, conversation.session, signal)) {
    if (chunk.crossturn?.mode) node.plan = chunk.crossturn;
    const progress = chunk.prompt_progress;
    if (progress) say(`Reading the prompt: ${progress.processed} of ${progress.total} tokens`);
    if (chunk.usage) node.nWritten = chunk.usage.completion_tokens;
    const delta = chunk.choices?.[0]?.delta;
    if (!delta || !grow(node.message, delta)) continue;
    node.firstTokenS ??= (performance.now() - begun) / 1000;
    say("Writing…");
    const thread = $("thread");
    const isAtEnd = thread.scrollHeight - thread.scrollTop - thread.clientHeight < 80;
    fill(view, node);
    if (isAtEnd) thread.scrollTop = thread.scrollHeight;
  }
  learnRate(node);
}

/** Add a delta to a message; whether anything came of it. */
function grow(message, delta) {
  let grew = false;
  for (const name of ["content", "reasoning_content", "reasoning"]) {
    if (!delta[name]) continue;
    const field = name === "reasoning" ? "reasoning_content" : name;
    if (name === "reasoning" && delta.reasoning_content) continue;
    message[field] = (message[field] ?? "") + delta[name];
    grew = true;
  }
  for (const part of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    const call = (message.tool_calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.function.name = part.function.name;
    call.function.arguments += part.function?.arguments ?? "";
    grew = true;
  }
  return grew;
}

function learnRate(node) {
  if (node.plan?.prefilled_tokens >= 64 && node.firstTokenS) {
    rate = Math.max(rate ?? 0, node.plan.prefilled_tokens / node.firstTokenS);
  }
}

function fail(error, node) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) settings.open(takeKey, error.message);
  node.error = error.message;
}

function finish(node, conversation) {
  delete node.streaming;
  running = null;
  setRunning(false);
  say(node.error ?? (node.stopped ? "Stopped." : "The reply is complete."));
  const isEmpty = !node.message.content && !node.message.tool_calls && !node.message.reasoning_content;
  if (node.stopped && isEmpty) conversation.remove(node);
  if (!node.message.content && node.message.tool_calls) node.message.content = null;
  if (conversation === current) draw();
  else save(conversations);
  if (!$("memory").hidden) refreshMemory();
  $("prompt").focus();
}

function setRunning(isRunning) {
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
}

async function send(text) {
  if (running || !text.trim()) return;
  const last = current.path().at(-1);
  const parent = editing ? editing.parent : (last?.id ?? null);
  const node = current.add(parent, { role: "user", content: text });
  stopEditing();
  await reply(node);
}

function stopEditing() {
  editing = null;
  $("prompt").value = "";
  say("");
  fit();
}

const actions = {
  edit(node) {
    if (running) return;
    editing = node;
    $("prompt").value = node.message.content;
    say("You are changing an earlier message. Escape leaves it as it is.");
    fit();
    $("prompt").focus();
  },
  regenerate(node) {
    if (!running) reply(current.nodes[node.parent]);
  },
  choose(node) {
    current.choose(node);
    draw();
  },
  branch(node) {
    const twin = current.branch(node);
    conversations.unshift(twin);
    show(twin);
  },
  async answerCall(node, call, result) {
    if (running) return;
    const last = current.path().at(-1);
    const added = current.add(last.id, { role: "tool", tool_call_id: call.id, content: result });
    if (pendingCalls(node, current).length) draw();
    else await reply(added);
  },
};

// -- the server's memory ------------------------------------------------------------------------

const slotActions = {
  async forget(slot) {
    await api.delete(`v1/slots/${slot.slot}`);
    await refreshMemory();
  },
  async fork(slot) {
    const twin = new Conversation({ title: `Fork of ${slotNames.get(slot.slot) ?? slot.slot}` });
    conversations.unshift(twin);
    await api.post(`v1/slots/${slot.slot}/fork`, { session_id: twin.session });
    draw();
    await refreshMemory();
  },
  async exportSlot(slot) {
    const url = URL.createObjectURL(await api.download(`v1/slots/${slot.slot}/export`));
    el("a", { href: url, download: `${slot.slot}.session` }).click();
    URL.revokeObjectURL(url);
  },
};
for (const [name, act] of Object.entries(slotActions)) {
  slotActions[name] = (slot) => act(slot).catch((error) => say(error.message));
}

async function refreshMemory() {
  try {
    drawMemory(await api.get("v1/slots"), slotNames, slotActions);
  } catch (error) {
    say(error.message);
  }
}

async function refreshNumbers() {
  if (document.hidden) return;
  try {
    drawNumbers(await api.get("v1/stats"));
    if (!$("memory").hidden) await refreshMemory();
  } catch {
    $("numbers").replaceChildren(el("div", {}, el("dd", { text: "no figures" })));
  }
}

// -- beginning ----------------------------------------------------------------------------------

async function takeKey() {
  api.key = settings.key;
  try {
    const models = await api.get("v1/models");
    $("model").textContent = models.data[0].id;
    say("");
  } catch (error) {
    if (error.status === 401) settings.open(takeKey, "This server asks for an API key.");
    else say(error.message);
  }
}

function fit() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function toggle(button, panel, isOpen) {
  $(button).setAttribute("aria-expanded", String(isOpen));
  if (panel === "memory") $("memory").hidden = !isOpen;
  else $("sidebar").classList.toggle("open", isOpen);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send($("prompt").value);
});
$("prompt").addEventListener("input", fit);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send($("prompt").value);
  }
  if (event.key === "ArrowUp" && !$("prompt").value) {
    const mine = current.path().filter((node) => node.message.role === "user").at(-1);
    if (mine) actions.edit(mine);
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("settings").open) return;
  if (running) running.abort();
  else if (editing) stopEditing();
});
$("stop").addEventListener("click", () => running?.abort());
$("new-conversation").addEventListener("click", () => show(current.path().length ? begin() : current));
$("open-sidebar").addEventListener("click", () => toggle("open-sidebar", "sidebar", !$("sidebar").classList.contains("open")));
$("open-memory").addEventListener("click", () => {
  toggle("open-memory", "memory", $("memory").hidden);
  if (!$("memory").hidden) refreshMemory();
});
$("open-settings").addEventListener("click", () => settings.open(takeKey));

draw();
await takeKey();
await refreshNumbers();
setInterval(refreshNumbers, 2000);
