// The little Markdown that models write in chats, as elements: fences, lists, headings, bold, code.
import { el } from "./dom.js";

/** Elements for `text`. What is not understood stays as it was written. */
export function markdown(text) {
  const blocks = [];
  let lines = [];
  const flush = () => {
    if (lines.length) blocks.push(...prose(lines));
    lines = [];
  };
  const rows = text.split("\n");
  for (let i = 0; i < rows.length; i++) {
    const fence = rows[i].match(/^\s*(```+|~~~+)/);
    if (!fence) {
      lines.push(rows[i]);
      continue;
    }
    flush();
    const code = [];
    for (i++; i < rows.length && !rows[i].trimStart().startsWith(fence[1]); i++) code.push(rows[i]);
    blocks.push(el("pre", {}, el("code", { text: code.join("\n") })));
  }
  flush();
  return blocks;
}

function prose(lines) {
  const blocks = [];
  let run = [];
  let kind = null;
  const flush = () => {
    const text = run.join("\n").trim();
    if (kind === "ul" || kind === "ol") blocks.push(el(kind, {}, ...run.map((item) => el("li", {}, ...inline(item)))));
    else if (text) blocks.push(el("p", {}, ...inline(text)));
    run = [];
  };
  for (const line of lines) {
    const item = line.match(/^\s*(?:([-*+])|\d+[.)])\s+(.*)/);
    const heading = line.match(/^#{1,6}\s+(.*)/);
    const now = item ? (item[1] ? "ul" : "ol") : line.trim() ? "p" : null;
    if (now !== kind || heading) flush();
    kind = now;
    if (heading) {
      blocks.push(el("p", {}, el("strong", {}, ...inline(heading[1]))));
      kind = null;
    } else if (now) {
      run.push(item ? item[2] : line);
    }
  }
  flush();
  return blocks;
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return el("code", { text: part.slice(1, -1) });
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return el("strong", { text: part.slice(2, -2) });
    return part;
  });
}
