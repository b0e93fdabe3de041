"""Brings events from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from server.events import Event


class Wakeable(Protocol):
    """What a courier needs of an event loop."""

    def call_soon_threadsafe(self, callback: Callable[[], None], /) -> object:
        """Call from the loop's thread, soon. Raises RuntimeError when the loop is closed."""
        ...


class Courier:
    """Takes along whatever was posted until it is under way: the engine tells all its replies at the same
    moment, and to wake the event loop takes a system call and the interpreter's lock."""

    def __init__(self, loop: Wakeable) -> None:
        self._loop = loop
        self._posted: deque[tuple[asyncio.Queue[Event], Event]] = deque()
        self._is_called = False

    def post(self, queue: asyncio.Queue[Event], event: Event) -> None:
        """Put ``event`` in ``queue``, in the order of posting. From any thread."""
        self._posted.append((queue, event))
        if not self._is_called:
            self._is_called = True
            # The loop is closed when the server has gone while the engine still winds down.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # first: what is posted from here on is either found below or calls again
        while self._posted:
            queue, event = self._posted.popleft()
            queue.put_nowait(event)
