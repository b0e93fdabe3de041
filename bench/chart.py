"""A line chart with logarithmic axes as SVG. Needs matplotlib, of the extra ``bench``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

mpl.use("svg")
mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "crossturn", "font.family": "sans-serif"}


@dataclass(frozen=True)
class Line:
    """One named series of positive values.

    Attributes:
        colour: a number; lines that share one belong together.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: int = 0
    is_dashed: bool = False


def chart(title: str, x_name: str, y_name: str, lines: Sequence[Line]) -> str:
    """The whole SVG document."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for line in lines:
        style = {"color": f"C{line.colour}", "linestyle": "--" if line.is_dashed else "-", "marker": "."}
        axes.plot(line.xs, line.ys, label=line.name, **style)
    axes.set(title=title, xlabel=x_name, ylabel=y_name, xscale="log", yscale="log")
    axes.set_xticks(sorted({x for line in lines for x in line.xs}))
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
    axes.grid(color="#dddddd")
    figure.legend(loc="outside right center", frameon=False)
    page = io.StringIO()
    figure.savefig(page, format="svg", metadata={"Date": None})
    return page.getvalue()
