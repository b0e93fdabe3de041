"""Figures as they come: a line for each, and all of them in a file after each, so that little is lost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class OutOfTimeError(Exception):
    """Ends a run after the figure that was being measured."""


class Figures:
    """What one run has measured.

    Args:
        out: a JSON file for the figures.
        seconds: how long after this moment the last figure may begin.
    """

    def __init__(self, out: Path | None, seconds: float | None) -> None:
        self.all: list[dict[str, Any]] = []
        self._out = out
        self._seconds = seconds
        self._start = time.monotonic()

    def tell(self, model: str, what: str, value: float, unit: str, **more: str) -> None:
        """Note ``what`` of ``model``; ``more`` stands in the file alone.

        Raises:
            OutOfTimeError: the time is over.
        """
        self.all.append({"model": model, "what": what, "value": value, "unit": unit, **more})
        after = time.monotonic() - self._start
        print(f"{after:5.0f} s  {model:16}  {what:44} {value:10.2f} {unit}", flush=True)
        if self._out:
            self._out.write_text(json.dumps(self.all, indent=1))
        if self._seconds and after > self._seconds:
            raise OutOfTimeError(f"stopped: {self._seconds:.0f} s are over")
