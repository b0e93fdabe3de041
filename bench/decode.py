"""Decode speed, alone and in company, beside mlx-lm on the same checkpoint, in one run.

    python bench/decode.py --model demo --companies 1 2 4 8 16 32

Each side runs in processes of its own, turn about; figures are medians over the rounds. mlx-lm steps
over its padded batch cache.
"""

from __future__ import annotations

from pathlib import Path

from sides import CROSSTURN, as_child, compare, prepare_side, side_options

CONTEXT = 1024


def main() -> None:
    """Measure every side at every size and print a table."""
    parser = side_options(__doc__)
    parser.add_argument("--companies", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    options = parser.parse_args()
    seconds = compare(__file__, options, options.companies)
    for i, size in enumerate(options.companies):
        print(f"{size} sequences at {CONTEXT} tokens:")
        for side in options.sides:
            ratio = seconds[side][i] / seconds[CROSSTURN][i]
            rate = size / seconds[side][i]
            print(f"  {side:16} {rate:9.1f} tok/s   crossturn is {ratio:5.2f} x as fast")


def child(side: str, path: Path, companies: list[int]) -> list[float]:
    """Seconds for one step of each company."""
    prepare_side(side)
    return crossturn(path, companies) if side == CROSSTURN else mlx_lm(path, companies)


def crossturn(path: Path, companies: list[int]) -> list[float]:
    """Through our decode batch."""
    from filled import decode_seconds, filled_state, stepper

    from model.checkpoint.load import load

    model = load(path)
    return [
        decode_seconds(stepper(model, [filled_state(model, CONTEXT) for _ in range(size)]), size)
        for size in companies
    ]


def mlx_lm(path: Path, companies: list[int]) -> list[float]:
    """Through mlx-lm's model."""
    from filled import decode_seconds, filled_cache
    from mlx_lm.utils import load_model

    from model.checkpoint.config import read_config

    model, _ = load_model(path)
    config = read_config(path)
    found = []
    for size in companies:
        cache = filled_cache(model, config, size, CONTEXT)
        found.append(decode_seconds(lambda ids, cache=cache: model(ids[:, None], cache=cache)[:, -1], size))
    return found


if __name__ == "__main__" and not as_child(child):
    main()
