"""Notices that something has not happened for a while: a frame on the event loop, a step of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

from server.client import EngineStats


class Clock(Protocol):
    """What a watch needs of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None: ...


class Watch:
    """Calls ``on_silence`` when :meth:`note` was not called for ``seconds``, and again after as many.

    It is for what happens often: to note it sets no timer. Runs while it is entered.
    """

    def __init__(self, seconds: float, on_silence: Callable[[], None], *, loop: Clock | None = None) -> None:
        self._seconds = seconds
        self._on_silence = on_silence
        self._loop = loop or asyncio.get_running_loop()
        self._noted_at = 0.0
        self._timer: Timer | None = None

    def __enter__(self) -> Self:
        self.note()
        self._look_in(self._seconds)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._timer is not None
        self._timer.cancel()

    def note(self) -> None:
        """It has happened."""
        self._noted_at = self._loop.time()

    def _look_in(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        rest = self._noted_at + self._seconds - self._loop.time()
        if rest > 0:
            self._look_in(rest)
            return
        self.note()
        self._look_in(self._seconds)
        self._on_silence()


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
