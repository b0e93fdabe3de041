"""Prefill speed beside mlx-lm on the same checkpoint, in one run.

    python bench/prefill.py --model demo --lengths 512 2048

Each side runs in processes of its own, turn about; figures are medians over the rounds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sides import CROSSTURN, as_child, compare, median_seconds, prepare_side, side_options


def main() -> None:
    """Measure every side at every length and print a table."""
    parser = side_options(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    options = parser.parse_args()
    seconds = compare(__file__, options, options.lengths)
    for i, length in enumerate(options.lengths):
        print(f"prefill of {length} tokens:")
        for side in options.sides:
            ratio = seconds[side][i] / seconds[CROSSTURN][i]
            print(f"  {side:16} {length / seconds[side][i]:9.0f} tok/s   crossturn is {ratio:5.1f} x as fast")


def child(side: str, path: Path, lengths: list[int]) -> list[float]:
    """Seconds for one prefill of each length, from ids to the first token."""
    prepare_side(side)
    prompts = [np.random.default_rng(n).integers(0, 4000, n).astype(np.uint32) for n in lengths]
    return crossturn(path, prompts) if side == CROSSTURN else mlx_lm(path, prompts)


def crossturn(path: Path, prompts: list[np.ndarray]) -> list[float]:
    """Through our forward pass."""
    from model.checkpoint.load import load

    model = load(path)
    return [median_seconds(lambda ids=ids: model.prefill(model.new_state(), ids)) for ids in prompts]


def mlx_lm(path: Path, prompts: list[np.ndarray]) -> list[float]:
    """Through mlx-lm's own generation loop, up to its first token."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model, _ = load_model(path)

    def first_token(ids: np.ndarray) -> int:
        return int(next(iter(generate_step(mx.array(ids), model, max_tokens=1)))[0])

    return [median_seconds(lambda ids=ids: first_token(ids), n_runs=1) for ids in prompts]


if __name__ == "__main__" and not as_child(child):
    main()
