"""How a check judges: relative errors and their bounds, the table, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from model.device import Device

Arrays = Sequence[NDArray[np.float32]]

# By the precision of the dtype, some of which every layer loses.
_PASS_BOUNDS = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
_LAYER_BOUNDS = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2e-2}
# GPUs may round the factors of a float32 product to 10 digits.
_GPU_FLOAT32 = {"layer": 3e-3, "pass": 2e-2}


def pass_bound(dtype: str, device: Device) -> float:
    """How much two ways through the whole model may differ."""
    gpu = _GPU_FLOAT32["pass"] if dtype == "float32" and device.kind != "cpu" else 0.0
    return max(_PASS_BOUNDS[dtype], gpu)


def layer_bound(dtype: str, device: Device) -> float:
    """How much two ways through a layer may differ, whatever plain operations reach."""
    gpu = _GPU_FLOAT32["layer"] if dtype == "float32" and device.kind != "cpu" else 0.0
    return max(_LAYER_BOUNDS[dtype], gpu)


def numbers(arrays: Sequence[mx.array]) -> list[NDArray[np.float32]]:
    """``arrays`` in float32, out of MLX."""
    return [np.array(a.astype(mx.float32)) for a in arrays]


def apart(found: Arrays, wanted: Arrays) -> float:
    """The root mean square of the differences divided by that of ``wanted``, for the worst array.

    Infinite if a value is not finite.
    """
    assert len(found) == len(wanted)
    return max((_one(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)


def logits_apart(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """:func:`apart` for logits, to which a constant may be added."""
    return apart([found - found.mean()], [wanted - wanted.mean()])


def _one(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    assert found.shape == wanted.shape
    if not np.isfinite(found).all() or not np.isfinite(wanted).all():
        return math.inf
    scale = float(np.sqrt(np.mean(np.square(wanted, dtype=np.float64))))
    error = float(np.sqrt(np.mean(np.square(found.astype(np.float64) - wanted))))
    return error / scale if scale else (math.inf if error else 0.0)


Outcome = Literal["same", "differs", "told"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        part: what was checked, such as ``GDN layer, prompt``.
        outcome: ``told`` if there is nothing to judge.
        found: the figure.
        bound: its limit; empty if there is nothing to judge.
    """

    part: str
    outcome: Outcome
    found: str
    bound: str = ""


@dataclass(slots=True)
class Section:
    """Rows under a heading, and notes below them."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def judge(self, part: str, error: float, bound: float) -> None:
        """Add a row for a difference that may be at most ``bound``; NaN differs."""
        outcome: Outcome = "same" if error <= bound else "differs"
        self.rows.append(Row(part, outcome, f"{error:.1e}", f"{bound:.1e}"))

    def tell(self, part: str, found: str) -> None:
        """Add a row that judges nothing."""
        self.rows.append(Row(part, "told", found))

    @property
    def differing(self) -> list[str]:
        return [row.part for row in self.rows if row.outcome == "differs"]


def differing(sections: Iterable[Section]) -> list[str]:
    """The parts that differ, in order."""
    return [part for section in sections for part in section.differing]


def verdict(sections: Sequence[Section]) -> str:
    """The verdict in one line."""
    wrong = differing(sections)
    n_judged = sum(row.outcome != "told" for section in sections for row in section.rows)
    if not wrong:
        return f"verdict: all {n_judged} comparisons agree"
    return f"verdict: {len(wrong)} of {n_judged} comparisons differ: {'; '.join(wrong)}"


def table(section: Section) -> str:
    """A section as text for a terminal."""
    mark = {"same": "ok", "differs": "DIFFERS", "told": ""}
    width = max((len(row.part) for row in section.rows), default=0)
    lines = [section.title]
    for row in section.rows:
        bound = f"  (at most {row.bound})" if row.bound else ""
        lines.append(f"  {row.part:<{width}}  {row.found}{bound}  {mark[row.outcome]}".rstrip())
    return "\n".join([*lines, *(f"  {note}" for note in section.notes)])


def report(sections: Sequence[Section]) -> str:
    """All of it in Markdown, for an issue."""
    lines = ["# crossturn check", "", f"**{verdict(sections)}**"]
    for section in sections:
        lines += ["", f"## {section.title}", "", "| part | found | at most | |", "|---|---|---|---|"]
        for row in section.rows:
            lines.append(f"| {row.part} | {row.found} | {row.bound} | {_mark(row)} |")
        lines += [line for note in section.notes for line in ("", note)]
    return "\n".join(lines) + "\n"


def _mark(row: Row) -> str:
    return {"same": "ok", "differs": "**differs**", "told": ""}[row.outcome]
