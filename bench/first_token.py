"""Time to the first token of an appended turn, beside a fresh prompt as long as the new part.

    python bench/first_token.py --model demo --history 8000 --new 256 1024

What the appended turn costs beyond the fresh prompt is attention over the history. To show that, the
last column counts its attention products (new tokens x tokens seen) over the fresh prompt's.
"""

from __future__ import annotations

import argparse
import statistics

from model.backend import prepare

prepare()

import numpy as np  # noqa: E402
from loops import Loop, Told, random_ids  # noqa: E402

from model.checkpoint.hub import resolve  # noqa: E402
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
    loop = Loop(resolve(options.model))
    history = random_ids(options.history, 0, loop.info.vocab_size)
    print(f"| new tokens | fresh | after {options.history} tokens | ratio | attention products |")
    print("|---:|---:|---:|---:|---:|")
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
        products = (options.history + n_new / 2) / (n_new / 2)
        print(
            f"| {n_new} | {cold * 1e3:.0f} ms | {warm * 1e3:.0f} ms | {warm / cold:.2f} | {products:.1f} x |"
        )


def _ask(loop: Loop, ids: np.ndarray, session: str) -> Told:
    return loop.ask(RenderedPrompt(ids), session=session, max_tokens=1)


if __name__ == "__main__":
    main()
