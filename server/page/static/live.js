// The numbers in the header, from the server's statistics.
import { $, bytes, el } from "./dom.js";

let before = null;

/** Draw `stats`, the body of GET /v1/stats. */
export function drawNumbers(stats) {
  const now = performance.now() / 1000;
  const rate = before ? Math.max(0, (stats.generated_tokens - before.stats.generated_tokens) / (now - before.now)) : 0;
  before = { stats, now };
  const numbers = {
    "tokens/s": rate.toFixed(0),
    running: stats.running,
    waiting: stats.waiting,
    memory: bytes(stats.bytes),
    evictions: stats.evictions,
  };
  $("numbers").replaceChildren(...Object.entries(numbers).map(([name, value]) =>
    el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
}
