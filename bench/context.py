"""Cost of a token over context, read and written, as a table and a plot.

    python bench/context.py --model demo --out docs/cost-over-context.svg

No prompt of that length is read first: rows and states are filled in (see ``filled.py``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sides import CROSSTURN, prepare_side

prepare_side(CROSSTURN)

import numpy as np  # noqa: E402
from filled import decode_seconds, filled_state, stepper, timed  # noqa: E402

from model.backend import detect  # noqa: E402
from model.checkpoint.hub import resolve  # noqa: E402
from model.checkpoint.load import load  # noqa: E402
from model.forward import Forward  # noqa: E402


def main() -> None:
    """Measure each context and write the plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="directory, Hub name or demo")
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384, 30000]
    )
    parser.add_argument("--part", type=int, default=512, help="tokens read at each context")
    parser.add_argument("--out", type=Path, help="an SVG file")
    options = parser.parse_args()
    model = load(resolve(options.model))
    read, written = [], []
    for n in options.contexts:
        read.append(1e3 * read_seconds(model, n, options.part) / options.part)
        written.append(1e3 * decode_seconds(stepper(model, [filled_state(model, n)]), 1))
        print(
            f"at {n:6} tokens: {read[-1]:7.3f} ms a token read, {written[-1]:7.2f} ms a token written",
            flush=True,
        )
    if options.out:
        from chart import Line, chart

        lines = [
            Line("written (decode, one sequence)", options.contexts, written, is_dashed=True),
            Line(f"read (prefill of {options.part})", options.contexts, read),
        ]
        title = f"Cost of a token over context: {options.model}, {detect().name}"
        options.out.write_text(chart(title, "tokens of context", "ms a token", lines))


def read_seconds(model: Forward, context: int, n_tokens: int) -> float:
    """Seconds to read ``n_tokens`` after ``context``."""
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, n_tokens).astype(np.uint32)
    state = filled_state(model, context)
    start = state.snapshot()

    def read() -> None:
        state.restore(start)
        model.prefill(state, ids)

    return timed(read)


if __name__ == "__main__":
    main()
