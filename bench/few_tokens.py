"""What a few tokens after a long history cost, beside a decode step: an appended turn, and guessed tokens.

    python bench/few_tokens.py --model demo --history 1000 8000
    python bench/few_tokens.py --shape 0.8B --history 4096 32768

``read`` feeds the tokens to one sequence, with the state after the last and one on the way, as an appended
turn does. ``guess`` feeds them with the state after each and the likeliest token behind each, and keeps half.
Figures are medians.
"""

from __future__ import annotations

import argparse

from sides import prepare_side

prepare_side("crossturn")

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from filled import filled_state, timed  # noqa: E402
from random_model import forward_over, random_modules  # noqa: E402
from shape_table import SHAPES  # noqa: E402

from model.checkpoint.hub import resolve  # noqa: E402
from model.checkpoint.load import load  # noqa: E402
from model.forward import Forward  # noqa: E402

N_RUNS = 15


def main() -> None:
    """Print a table for each length of history."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a checkpoint")
    parser.add_argument("--shape", choices=SHAPES, help="instead of one: random weights")
    parser.add_argument("--bits", type=int, default=16, choices=[16, 8, 4])
    parser.add_argument("--history", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--most-guessed", type=int, default=16)
    options = parser.parse_args()
    if options.shape:
        forward = forward_over(*random_modules(options.shape, options.bits))
    else:
        forward = load(resolve(options.model or "demo"))
    forward.warm_up()
    for length in options.history:
        step = step_seconds(forward, length)
        print(f"\nafter {length} tokens: a step takes {1e3 * step:.2f} ms")
        print("| tokens | read | in steps | guess | in steps |\n|---:|---:|---:|---:|---:|")
        for n in options.tokens:
            cells = [read_seconds(forward, length, n)]
            if n <= options.most_guessed:
                cells.append(guess_seconds(forward, length, n))
            row = " | ".join(f"{1e3 * seconds:.2f} ms | {seconds / step:.1f}" for seconds in cells)
            print(f"| {n} | {row} |", flush=True)


def step_seconds(forward: Forward, length: int) -> float:
    """One token of one sequence, waited for."""
    batch = forward.new_batch()
    batch.join(0, filled_state(forward, length))
    token = mx.zeros((1,), mx.uint32)
    return timed(lambda: mx.eval(mx.argmax(batch.step(token), axis=-1)), N_RUNS)


def read_seconds(forward: Forward, length: int, n: int) -> float:
    """A prompt's last ``n`` tokens, from the state before them each time."""
    state = filled_state(forward, length)
    before = state.snapshot()
    ids = np.arange(n, dtype=np.uint32)
    wanted = sorted({length + (n + 1) // 2, length + n})

    def read() -> None:
        state.restore(before)
        forward.prefill(state, ids, capture_at=wanted)

    return timed(read, N_RUNS)


def guess_seconds(forward: Forward, length: int, n: int) -> float:
    """``n`` tokens of which half are kept; the sequence grows by them."""
    batch = forward.new_batch()
    batch.join(0, filled_state(forward, length))
    ids = mx.arange(n, dtype=mx.uint32)[None]

    def guess() -> None:
        mx.eval(mx.argmax(batch.extend(ids), axis=-1))
        batch.keep([(n + 1) // 2])

    return timed(guess, N_RUNS)


if __name__ == "__main__":
    main()
