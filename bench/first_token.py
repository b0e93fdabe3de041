"""Time to the first token of an appended turn, beside a fresh prompt as long as the new part.

    python bench/first_token.py --model demo --history 8000 --new 256 1024

What the appended turn costs beyond the fresh prompt is attention over the history. To show that, the
same attention (queries of the new tokens against keys of the history and of themselves, all layers) is
timed on its own for both; the last column is the ratio of what is left when it is taken away.
"""

from __future__ import annotations

import argparse
import statistics
import time

from model.backend import prepare

prepare()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from loops import Loop, Told, random_ids  # noqa: E402

from model.backend import detect  # noqa: E402
from model.checkpoint.hub import resolve  # noqa: E402
from model.checkpoint.load import load  # noqa: E402
from model.devices.cpu.attention import attend  # noqa: E402
from model.devices.cpu.host import n_usable_cores  # noqa: E402
from model.devices.cpu.rows import Crew  # noqa: E402
from model.forward import Forward  # noqa: E402
from model.layers.ops import fused_attention  # noqa: E402
from model.text.chat import RenderedPrompt  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--history", type=int, default=8000)
    parser.add_argument("--new", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    path = resolve(options.model)
    loop, forward = Loop(path), load(path)
    history = random_ids(options.history, 0, loop.info.vocab_size)
    print(f"| new tokens | fresh | after {options.history} tokens | ratio | attention alone | rest |")
    print("|---:|---:|---:|---:|---:|---:|")
    for n_new in options.new:
        fresh, appended = [], []
        for round_ in range(options.rounds + 1):
            new = random_ids(n_new, 1 + round_, loop.info.vocab_size)
            fresh.append(_ask(loop, new, f"fresh {n_new} {round_}").first_token_s)
            session = f"appended {n_new} {round_}"
            reply = _ask(loop, history, session).token_ids
            both = np.concatenate([history, np.array(reply, dtype=np.uint32), new])
            told = _ask(loop, both, session)
            assert told.report.prefilled_tokens == n_new, told.report
            appended.append(told.first_token_s)
        cold, warm = statistics.median(fresh[1:]), statistics.median(appended[1:])
        cold_attention, warm_attention = (
            _attention_s(forward, n_past, n_new) for n_past in (0, options.history)
        )
        rest = (warm - warm_attention) / (cold - cold_attention)
        print(
            f"| {n_new} | {cold * 1e3:.0f} ms | {warm * 1e3:.0f} ms | {warm / cold:.2f} "
            f"| {cold_attention * 1e3:.0f} and {warm_attention * 1e3:.0f} ms | {rest:.2f} |"
        )


def _attention_s(forward: Forward, n_past: int, n_new: int, n_rounds: int = 5) -> float:
    """Seconds for the attention of all layers, queries of the new tokens over all keys, in the parts in
    which a prefill takes them."""
    config = forward.config
    on_cpu, crew = detect().kind == "cpu", Crew(n_usable_cores())
    rounds = []
    for _ in range(n_rounds):
        seconds = 0.0
        for first in range(0, n_new, forward.part_tokens):
            n_queries = min(forward.part_tokens, n_new - first)
            keys = (1, config.n_kv_heads, n_past + first + n_queries, config.head_dim)
            q = mx.random.normal((1, config.n_heads, n_queries, config.head_dim))
            k, v = mx.random.normal(keys), mx.random.normal(keys)
            mx.eval(q, k, v)
            started = time.perf_counter()
            for _ in range(config.n_full_attention_layers):
                if on_cpu:
                    attend(np.asarray(q)[0], np.asarray(k)[0], np.asarray(v)[0], 1.0, crew)
                else:
                    mx.eval(fused_attention(q, k, v, 1.0, "causal"))
            seconds += time.perf_counter() - started
        rounds.append(seconds)
    return statistics.median(rounds)


def _ask(loop: Loop, ids: np.ndarray, session: str) -> Told:
    return loop.ask(RenderedPrompt(ids), session=session, max_tokens=1)


if __name__ == "__main__":
    main()
