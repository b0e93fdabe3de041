"""What all commands share: their form, and how they print sizes and times."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``crossturn``.

    Attributes:
        name: on the command line.
        help: what it does, in half a sentence.
        add_options: adds its options to a parser.
        run: runs it and returns the exit status. A CrossturnError is printed as one line, with status 1.
    """

    name: str
    help: str
    add_options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


def bytes_in_words(n_bytes: float) -> str:
    """A size, such as ``3.4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024 or unit == "GiB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 100 else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    raise AssertionError("the largest unit takes every size")


def seconds_in_words(seconds: float) -> str:
    """A time, such as ``12 s`` or ``3 min``."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
