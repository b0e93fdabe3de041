"""One request on its way through the engine, seen from the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from starlette.types import Receive

from model.errors import CrossturnError, InputError
from server.client import EngineClient
from server.errors import EngineFaultError, RateLimitError, UnavailableError
from server.events import Emit, Event, Failed, Finished, GenerationRequest, Progress
from server.http.watch import Watch
from server.telemetry.record import RequestRecord

T = TypeVar("T")


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


class Run:
    """Carries events from the engine thread to whoever encodes them, and a cancel back.

    A run may consist of several generation requests (a list of prompts); their replies are numbered on.

    Args:
        engine: what does the work.
        courier: brings the engine's events.
        record: the run's line in the log, written when the run ends.
        live: the runs in progress; this one is among them while its events are listened to.
        stall_s: give up when neither this run nor the engine has moved for so long.
    """

    def __init__(
        self, engine: EngineClient, courier: Courier, record: RequestRecord, *, live: set[Run], stall_s: float
    ) -> None:
        self.record = record
        self.ended = asyncio.Event()
        self._live = live
        self._engine = engine
        self._courier = courier
        self._stall_s = stall_s
        self._watch = Watch(stall_s, self._on_silence)
        self._pulse = 0
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def _emit_from(self, first_index: int) -> Emit:
        """Takes the events of a request whose replies are numbered from ``first_index``."""

        def emit(event: Event) -> None:
            if first_index and isinstance(event, Progress | Finished):
                event = replace(event, index=event.index + first_index)
            self._courier.post(self._queue, event)

        return emit

    def fail(self, failure: Failed) -> None:
        """End the run from this side, with ``failure`` as its last event."""
        self._queue.put_nowait(failure)

    async def events(self, requests: Sequence[GenerationRequest]) -> AsyncGenerator[Event, None]:
        """Submit ``requests`` and yield their events up to the last reply's end.

        Whoever stops listening (closes the iterator, or is cancelled) cancels them.

        Raises:
            CrossturnError: a request failed, or nothing moves any more.
        """
        n_open = 0
        self.record.slot = requests[0].slot
        self._live.add(self)
        try:
            for request in requests:
                self._engine.submit(request, self._emit_from(n_open))
                n_open += request.n_replies
            with self._watch:
                while n_open:
                    event = await self._next()
                    self.record.observe(event)
                    if isinstance(event, Failed):
                        raise http_error(event)
                    n_open -= isinstance(event, Finished)
                    yield event
        finally:
            if n_open:
                for request in requests:
                    self._engine.cancel(request.id)
            self._live.discard(self)
            self.ended.set()
            self.record.close()

    async def _next(self) -> Event:
        self._pulse = self._engine.n_steps
        self._watch.note()
        return await self._queue.get()

    def _on_silence(self) -> None:
        """Nothing was heard of this run: give it up unless the engine has moved."""
        n_steps = self._engine.n_steps
        if n_steps == self._pulse and self._queue.empty():
            self.fail(Failed(f"The engine has not moved for {self._stall_s:g} s.", kind="internal"))
        self._pulse = n_steps


def http_error(failure: Failed) -> CrossturnError:
    """What a client is told of ``failure``."""
    if failure.kind == "invalid":
        return InputError(failure.message, param=failure.param, code="invalid_value")
    if failure.kind == "rate_limited":
        return RateLimitError(failure.message, retry_after_s=failure.retry_after_s or 1.0)
    if failure.kind in ("overloaded", "shutting_down"):
        return UnavailableError(
            failure.message, code=failure.kind, retry_after_s=failure.retry_after_s or 1.0
        )
    return EngineFaultError(failure.message, code=failure.kind)


async def run_until_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Await ``work``, or cancel it when the client disconnects; None says that the client is gone.

    ``receive`` must have delivered the whole body before.
    """
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.cancel()
        is_done = working.done()
        working.cancel()
        await asyncio.wait({working, listening})
    if is_done:
        return working.result()
    if not working.cancelled():
        working.exception()  # retrieved, so that asyncio does not report it as lost
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
