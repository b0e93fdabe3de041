"""A line chart with logarithmic axes as SVG: enough for one plot without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 70, 30, 50, 60
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")


@dataclass(frozen=True)
class Line:
    """One named series of positive values."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


class _Axis:
    """Places values of one dimension on the page, by their logarithm."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        seen = list(values)
        self._low, self._high = math.log10(min(seen) * 0.9), math.log10(max(seen) * 1.1)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times each power of ten inside."""
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        marks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        return [mark for mark in marks if self._low <= math.log10(mark) <= self._high]


def chart(title: str, x_name: str, y_name: str, lines: Sequence[Line]) -> str:
    """The whole SVG document."""
    x = _Axis((v for line in lines for v in line.xs), _LEFT, _WIDTH - _RIGHT)
    y = _Axis((v for line in lines for v in line.ys), _HEIGHT - _BOTTOM, _TOP)
    parts = [_text(_LEFT, 24, title, size=15)]
    parts += [
        f'<path d="M{x.at(mark)} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>'
        + _text(x.at(mark), _HEIGHT - _BOTTOM + 18, f"{mark:g}", anchor="middle")
        for mark in x.ticks()
    ]
    parts += [
        f'<path d="M{_LEFT} {y.at(mark)}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
        + _text(_LEFT - 8, y.at(mark) + 4, f"{mark:g}", anchor="end")
        for mark in y.ticks()
    ]
    parts.append(_text(_WIDTH / 2, _HEIGHT - 18, x_name, anchor="middle"))
    parts.append(_text(_LEFT - 50, _TOP - 10, y_name))
    for i, line in enumerate(lines):
        colour = _COLOURS[i % len(_COLOURS)]
        points = " ".join(f"{x.at(a)},{y.at(b)}" for a, b in zip(line.xs, line.ys, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(_text(_LEFT + 14, _TOP + 20 + 20 * i, line.name, colour=colour))
    body = "\n".join(parts)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#333"
) -> str:
    where = f'x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {where} fill="{colour}">{escape(text)}</text>'
