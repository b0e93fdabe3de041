"""Cost of a token over context and over company, for models of real sizes with random weights.

    python bench/sizes.py --shapes 0.8B 4B --bits 16 4 --peer --chart docs/cost-over-context-h200.svg
    python bench/sizes.py --shapes 35B-A3B --bits 4 --contexts 1024 16384 --seconds 120 --out 35b-4.json
    python bench/sizes.py --figures 0.8b.json 35b-4.json --chart docs/cost-over-context-h200.svg

For a GPU; the tiny shapes run on a CPU too, in float32. Each line is one figure, and in ``--out`` as soon as
it is measured; ``--peer`` runs mlx-lm over the same weights, in the same process, before ours takes them
over. No prompt is read for the decode figures: rows and states are filled in, which changes nothing about
their cost.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sides import prepare_side

prepare_side("crossturn")

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import numpy as np  # noqa: E402
from figures import Figures, OutOfTimeError  # noqa: E402
from filled import decode_seconds, filled_cache, filled_state, stepper, timed  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from random_model import forward_over, random_modules  # noqa: E402
from shape_table import SHAPES  # noqa: E402

from model.backend import detect  # noqa: E402
from model.checkpoint.config import ModelConfig  # noqa: E402
from model.forward import Forward  # noqa: E402

PART = 4096  # tokens read at each context
N_RUNS = 5  # of each figure of decoding; the median counts

Tell = Callable[[str, float, str], None]  # what, how much, of what


def main() -> None:
    """Print a line for each figure, and write them all as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["0.8B"], choices=SHAPES)
    parser.add_argument("--bits", type=int, nargs="+", default=[16], choices=[16, 8, 4])
    parser.add_argument("--contexts", type=int, nargs="*", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--companies", type=int, nargs="*", default=[1, 4, 16, 32])
    parser.add_argument("--company-context", type=int, default=4096)
    parser.add_argument("--prompts", type=int, nargs="*", default=[1024, 2 * PART])
    parser.add_argument("--peer", action="store_true", help="measure mlx-lm too")
    parser.add_argument("--seconds", type=float, help="start no figure later than so long after the start")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--figures", type=Path, nargs="+", help="draw a chart of such files, measure nothing")
    parser.add_argument("--chart", type=Path, help="an SVG file for the cost of a token over context")
    options = parser.parse_args()
    figures = Figures(options.out, options.seconds)
    for path in options.figures or []:
        figures.all += json.loads(path.read_text())
    model = ""

    def tell(what: str, value: float, unit: str) -> None:
        figures.tell(model, what, value, unit, on=detect().name)

    try:
        for shape, bits in [] if options.figures else itertools.product(options.shapes, options.bits):
            model = f"{shape} {bits} bits"
            measure(shape, bits, options, tell)
            gc.collect()  # compiled steps and what they close over refer to each other
            mx.clear_cache()
    except OutOfTimeError as stop:
        print(stop, flush=True)
    if options.chart:
        options.chart.write_text(context_chart(figures.all))


def measure(shape: str, bits: int, options: argparse.Namespace, tell: Tell) -> None:
    """All figures of one model."""
    modules, config = random_modules(shape, bits)
    tell("weights", sum(w.nbytes for _, w in tree_flatten(modules.parameters())) / 1e9, "GB")
    if bits == 16:
        tell("bare read of all matrices", 1e3 * bare_read_seconds(modules), "ms")
    if options.peer:
        measure_peer(modules, config, options, tell)
    measure_ours(forward_over(modules, config), options, tell)


def context_chart(figures: Sequence[Mapping[str, Any]]) -> str:
    """An SVG of the milliseconds that a token costs, read and written, over the tokens before it."""
    from chart import Line, chart  # only for those who want one

    points: dict[tuple[str, bool], dict[int, float]] = {}  # by model, and whether tokens are written
    for figure in figures:
        read = re.fullmatch(r"prefill of \d+ after (\d+)", figure["what"])
        written = re.fullmatch(r"decode after (\d+)", figure["what"])
        if read:
            points.setdefault((figure["model"], False), {})[int(read[1])] = 1e3 / figure["value"]
        elif written:
            points.setdefault((figure["model"], True), {})[int(written[1])] = figure["value"]
    colours = {model: i for i, model in enumerate(dict.fromkeys(model for model, _ in points))}
    lines = [
        Line(f"{model}, {'written' if dashed else 'read'}", [*at], [*at.values()], colours[model], dashed)
        for (model, dashed), at in points.items()
    ]
    title = f"Cost of a token over context: random weights, {figures[0]['on']}"
    return chart(title, "tokens of context", "ms a token", lines)


def measure_ours(forward: Forward, options: argparse.Namespace, tell: Tell) -> None:
    """Prefill, decode over company, then both over context: what takes longest comes last."""
    longest = max(*options.prompts, PART)
    ids = np.random.default_rng(0).integers(0, forward.config.vocab_size, longest).astype(np.uint32)
    start = time.perf_counter()
    forward.warm_up()
    tell("warm-up, where kernels are built", time.perf_counter() - start, "s")
    for n in options.prompts:
        mx.reset_peak_memory()
        seconds = timed(lambda n=n: forward.prefill(forward.new_state(), ids[:n]))
        tell(f"prefill of {n}", n / seconds, "tok/s")
        tell(f"prefill of {n}: peak memory", mx.get_peak_memory() / 1e9, "GB")
    for size in options.companies:
        states = [filled_state(forward, options.company_context) for _ in range(size)]
        seconds = decode_seconds(stepper(forward, states), size, N_RUNS)
        tell(f"decode, {size} sequences of {options.company_context}", size / seconds, "tok/s")
    for n in options.contexts:
        state = filled_state(forward, n)
        start = state.snapshot()
        seconds = timed(
            lambda state=state, start=start: (state.restore(start), forward.prefill(state, ids[:PART]))
        )
        tell(f"prefill of {PART} after {n}", PART / seconds, "tok/s")
        state.restore(start)
        tell(f"decode after {n}", 1e3 * decode_seconds(stepper(forward, [state]), 1, N_RUNS), "ms")


def measure_peer(model: nn.Module, config: ModelConfig, options: argparse.Namespace, tell: Tell) -> None:
    """The same through mlx-lm's model and padded batch cache."""
    ids = mx.random.randint(0, config.vocab_size, (1, 1024))
    seconds = timed(lambda: mx.eval(model(ids, cache=model.make_cache())[:, -1]), n_runs=1)
    tell("mlx-lm: prefill of 1024", 1024 / seconds, "tok/s")
    for size in options.companies:
        cache = filled_cache(model, config, size, options.company_context)
        seconds = decode_seconds(
            lambda ids, cache=cache: model(ids[:, None], cache=cache)[:, -1], size, N_RUNS
        )
        tell(f"mlx-lm: decode, {size} sequences of {options.company_context}", size / seconds, "tok/s")


def bare_read_seconds(model: nn.Module) -> float:
    """One matrix-vector product with every plain matrix that a token reads, of as many experts as it is
    sent to: what no step of one sequence can undercut."""
    arguments = model.language_model.args
    pairs = []
    for name, w in tree_flatten(model.parameters()):
        is_read = w.ndim == 2 and ("embed_tokens" not in name or arguments.tie_word_embeddings)
        if is_read or ".switch_mlp." in name:
            experts = w[None] if w.ndim == 2 else w[: arguments.num_experts_per_tok]
            pairs += [(expert, mx.ones((w.shape[-1], 1), w.dtype)) for expert in experts]
    return timed(lambda: mx.eval([w @ x for w, x in pairs]))


if __name__ == "__main__":
    main()
