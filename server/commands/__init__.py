"""The commands of ``crossturn``, one file each. All are imported to build the command line: nothing heavy at
the top."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Protocol


class Command(Protocol):
    """What a command's module defines."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a module's constant
        """As it is typed."""
        ...

    @property
    def HELP(self) -> str:  # noqa: N802
        """What it does, in half a sentence."""
        ...

    @property
    def add_options(self) -> Callable[[ArgumentParser], None]:
        """Gives a parser the command's options."""
        ...

    @property
    def run(self) -> Callable[[Namespace], int]:
        """Does it; the exit status. A CrossturnError is told in one line, with status 1."""
        ...
