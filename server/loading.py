"""Says what a start is busy with: a bar on a terminal, a line in a log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import disable_progress_bars
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from model.checkpoint.load import Progress as OnProgress

log = logging.getLogger("crossturn.launch")

_LARGE = 1 << 30
"""Fewer bytes are read before a bar could be seen, and not worth a line."""


def settle_bars() -> None:
    """Bars of downloads are for terminals: in a log, each of their steps would be a line."""
    if not sys.stderr.isatty():
        disable_progress_bars()


@contextmanager
def loading(name: str) -> Iterator[OnProgress]:
    """Tell how far the weights of ``name`` are read; the value is to be called with it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(f"loading {name}", total=None, visible=False)
    has_told = False

    def tell(n_done: int, n_total: int) -> None:
        nonlocal has_told
        if n_total < _LARGE:
            return
        if not has_told:
            has_told = True
            log.info("loading %s: %.2f GiB of weights", name, n_total / 2**30)
        bar.update(task, completed=n_done, total=n_total, visible=True)

    with bar:
        yield tell
