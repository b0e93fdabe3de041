"""Two sides of a speed comparison: each runs in processes of its own, on the same checkpoint.

A bench script calls itself with ``--side NAME``; the child prints its figures as one JSON list.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from model.checkpoint.hub import resolve

CROSSTURN = "crossturn"
MLX_LM = "mlx-lm"  # as it installs, with the reference BLAS of mlx-cpu on Linux
MLX_LM_FAST = "mlx-lm+openblas"  # with the BLAS that this project lends to MLX


def side_options(description: str | None) -> argparse.ArgumentParser:
    """The options that every comparison has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="directory, Hub name or demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=[CROSSTURN, MLX_LM, MLX_LM_FAST])
    return parser


def compare(script: str, options: argparse.Namespace, values: Sequence[int]) -> dict[str, list[float]]:
    """For each side the median figures for ``values``, over rounds in which the sides take turns."""
    path = resolve(options.model)
    rounds: dict[str, list[list[float]]] = {side: [] for side in options.sides}
    with tempfile.TemporaryDirectory() as scratch:
        peer = mlx_lm_copy(path, Path(scratch))
        for _ in range(options.rounds):
            for side in options.sides:
                where = path if side == CROSSTURN else peer
                rounds[side].append(run_side(script, side, where, values))
    return {side: [float(x) for x in np.median(found, axis=0)] for side, found in rounds.items()}


def run_side(script: str, side: str, path: Path, values: Sequence[int]) -> list[float]:
    """The figures of one side for ``values``, measured in a fresh process."""
    command = [sys.executable, script, "--side", side, "--path", str(path), *map(str, values)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def prepare_side(side: str) -> None:
    """Set MLX up for a side, before anything imports it."""
    if side != MLX_LM:
        from model.backend import prepare

        prepare()


def mlx_lm_copy(path: Path, scratch: Path) -> Path:
    """A view of the checkpoint that mlx-lm 0.32.2 accepts: it does not know the text-only type names."""
    for file in path.iterdir():
        if file.name != "config.json":
            (scratch / file.name).symlink_to(file.resolve())
    config = json.loads((path / "config.json").read_text())
    config["model_type"] = config["model_type"].removesuffix("_text")
    config.setdefault("full_attention_interval", 4)
    (scratch / "config.json").write_text(json.dumps(config))
    return scratch


def median_seconds(work: Callable[[], object], n_runs: int = 3) -> float:
    """Median wall time of ``work``, after one run that is not counted."""
    work()
    seconds = []
    for _ in range(n_runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[n_runs // 2]


def as_child(measure: Callable[[str, Path, list[int]], list[float]]) -> bool:
    """Whether this process is a side; it then prints what ``measure`` finds."""
    if "--side" not in sys.argv:
        return False
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--side")
    parser.add_argument("--path", type=Path)
    parser.add_argument("values", type=int, nargs="*")
    options = parser.parse_args()
    print(json.dumps(measure(options.side, options.path, options.values)))
    return True
