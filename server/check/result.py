"""How a check judges: how far figures are apart, rows of a table, and the verdict over them."""

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

# By the digits that a dtype has, which every layer loses some of.
_PASS_BOUNDS = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
_LAYER_BOUNDS = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2e-2}
# GPUs may round the factors of a float32 product to 10 digits.
_GPU_FLOAT32 = {"layer": 3e-3, "pass": 2e-2}


def pass_bound(dtype: str, device: Device) -> float:
    """How far apart two ways through the whole model may be."""
    gpu = _GPU_FLOAT32["pass"] if dtype == "float32" and device.kind != "cpu" else 0.0
    return max(_PASS_BOUNDS[dtype], gpu)


def layer_bound(dtype: str, device: Device) -> float:
    """How far apart two ways through a layer may be at least."""
    gpu = _GPU_FLOAT32["layer"] if dtype == "float32" and device.kind != "cpu" else 0.0
    return max(_LAYER_BOUNDS[dtype], gpu)


def numbers(arrays: Sequence[mx.array]) -> list[NDArray[np.float32]]:
    """``arrays`` in float32, out of MLX."""
    return [np.array(a.astype(mx.float32)) for a in arrays]


def apart(found: Arrays, wanted: Arrays) -> float:
    """The root mean square of the differences over that of what is wanted, of the worst array.

    Infinite where one of them holds what is no number.
    """
    assert len(found) == len(wanted)
    return max((_one(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)


def logits_apart(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """:func:`apart` of logits, which a constant does not change."""
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
        part: what was looked at, as a person names it: ``GDN layer, prompt``.
        outcome: ``told`` where there is nothing to judge.
        found: the figure.
        bound: what it may be, empty where nothing is judged.
    """

    part: str
    outcome: Outcome
    found: str
    bound: str = ""


@dataclass(slots=True)
class Section:
    """Rows under a heading, and what is to be said below them."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def judge(self, part: str, error: float, bound: float) -> None:
        """Add a row for a difference that may be ``bound`` at most; what is no number differs."""
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
    """One line."""
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
