"""Whether the engine still moves, as far as those who look at it now and then can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from server.client import EngineStats


@dataclass
class Pulse:
    """Remembers when the engine was last seen to have moved, or to have nothing to do.

    Args:
        clock: seconds, monotonic.
        stall_s: an engine that has work and does not move for so long is stuck.
    """

    clock: Callable[[], float]
    stall_s: float
    _n_steps: int = -1
    _moved_at: float = field(default=0.0)

    def is_stalled(self, stats: EngineStats) -> bool:
        """Judge by ``stats``, which are those of now."""
        if not stats.is_alive:
            return True
        is_idle = stats.n_running == stats.n_waiting == 0
        if is_idle or stats.n_steps != self._n_steps:
            self._n_steps, self._moved_at = stats.n_steps, self.clock()
        return self.clock() - self._moved_at > self.stall_s
