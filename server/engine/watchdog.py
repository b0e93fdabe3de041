"""Notices that the engine has work and does not move, and says where its threads stand."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

from server.client import EngineStats

log = logging.getLogger("crossturn.engine")


class Watchdog:
    """Looks at the engine's pulse now and then, on a thread of its own.

    Args:
        stats: of now; may be called from any thread.
        stall_s: an engine that has work and has not moved for so long is stuck.
    """

    def __init__(self, stats: Callable[[], EngineStats], stall_s: float) -> None:
        self._stats = stats
        self._stall_s = stall_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._seen = -1
        self._has_told = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def look(self) -> bool:
        """Look once; the stacks are logged once for each time that the engine is stuck.

        Returns:
            whether the engine had work at this and the last look, and has not moved between them.
        """
        stats = self._stats()
        has_work = stats.n_running + stats.n_waiting > 0
        is_stuck = has_work and stats.n_steps == self._seen
        self._seen = stats.n_steps if has_work else -1
        if is_stuck and not self._has_told:
            log.critical("the engine has not moved for %g s:\n%s", self._stall_s, stacks())
        self._has_told = is_stuck
        return is_stuck

    def _watch(self) -> None:
        while not self._is_over.wait(self._stall_s):
            self.look()


def stacks() -> str:
    """Where every thread of the process stands."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
