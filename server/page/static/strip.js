// The strip under a reply: what was reused and what was read, to scale, and why, in words.
import { count, el, seconds } from "./dom.js";

const PARTS = {
  reused: "reused",
  ahead: "read ahead",
  replayed: "read again",
  new: "new",
  written: "written",
};

/** Tokens of each part of a turn. `plan` is the reply's `crossturn` object. */
export function parts(plan, nWritten) {
  const ahead = plan.read_ahead_tokens ?? 0;
  return {
    reused: plan.reused_tokens - ahead,
    ahead,
    replayed: plan.shared_tokens - plan.reused_tokens,
    new: plan.prompt_tokens - plan.shared_tokens,
    written: nWritten,
  };
}

/** What happened, for a reader who knows nothing of caches. */
export function inWords(plan) {
  const read = plan.prefilled_tokens;
  const all = plan.prompt_tokens;
  switch (plan.mode) {
    case "ExactAppend":
      return `The server remembered this conversation and read only what was added: ${count(read)} of ${count(all)} tokens.`;
    case "ReplayFromCheckpoint":
      return `The conversation was changed. The server went back to the checkpoint at token ${count(plan.reused_tokens)}`
        + ` and read from there: ${count(read)} of ${count(all)} tokens.`;
    default:
      if (plan.shared_tokens > 0) {
        return "The conversation was changed so near its beginning that no checkpoint lies before the change,"
          + ` so the server read all ${count(all)} tokens.`;
      }
      return `Nothing that the server remembers begins like this, so it read all ${count(all)} tokens.`;
  }
}

/** The strip for one reply. `seconds_` is the time to its first token; `rate` is tokens read a second, if known. */
export function strip(plan, nWritten, firstTokenS, rate) {
  const tokens = parts(plan, nWritten);
  const shown = Object.entries(tokens).filter(([, n]) => n > 0);
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  for (const [name, n] of shown) {
    const part = el("span", { class: name });
    part.style.flexGrow = n;
    bar.append(part);
  }
  const key = el("ul", { class: "key" });
  for (const [name, n] of shown) key.append(el("li", { class: name, text: `${count(n)} ${PARTS[name]}` }));
  return el("section", { class: "strip", "aria-label": "What was reused for this reply" },
    bar, key,
    el("p", { class: "words", text: `${inWords(plan)} ${timing(plan, firstTokenS, rate)}` }),
    el("p", { class: "reason", title: plan.mode, text: `${plan.mode}: ${plan.reason}` }));
}

function timing(plan, firstTokenS, rate) {
  if (firstTokenS === undefined) return "";
  const took = `The first token came after ${seconds(firstTokenS)}`;
  if (!rate || plan.reused_tokens === 0) return `${took}.`;
  return `${took}; reading everything would have taken about ${seconds(firstTokenS + plan.reused_tokens / rate)}.`;
}
