"""What capturing checkpoints costs a cold prefill: the time with captures over the time without.

    python bench/captures.py --model demo --tokens 8000 --messages 20

The captures are those that a conversation of so many messages gets. Rounds take turns; medians.
"""

from __future__ import annotations

import argparse
import statistics
import time

from model.backend import prepare

prepare()

import numpy as np  # noqa: E402
from loops import random_ids  # noqa: E402

from cache.boundaries import PromptShape, choose_captures  # noqa: E402
from model.checkpoint.hub import resolve  # noqa: E402
from model.checkpoint.load import load  # noqa: E402
from model.forward import Forward  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument(
        "--captures", type=int, default=31, help="states to keep; by default one for 256 tokens"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    forward = load(resolve(options.model))
    ids = random_ids(options.tokens, 0, forward.config.vocab_size)
    starts = tuple(range(0, options.tokens, options.tokens // options.messages))
    shape = PromptShape(starts, (options.tokens - 4,), starts[-1], starts[1])
    captures = choose_captures(shape, start=0, end=options.tokens, parted_at=None, max_count=options.captures)
    without, with_captures = [], []
    for _ in range(options.rounds + 1):
        without.append(_seconds(forward, ids, ()))
        with_captures.append(_seconds(forward, ids, captures))
    plain, captured = statistics.median(without[1:]), statistics.median(with_captures[1:])
    print(f"{options.tokens} tokens, {len(captures)} captures:")
    print(f"  {plain:.2f} s without, {captured:.2f} s with, ratio {captured / plain:.3f}")


def _seconds(forward: Forward, ids: np.ndarray, captures: tuple[int, ...]) -> float:
    state = forward.new_state()
    started = time.perf_counter()
    forward.prefill(state, ids, capture_at=captures)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
