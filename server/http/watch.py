"""Notices on the event loop that something has not happened for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, Self


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
