"""The run of one request on the event loop: its events from the engine, and its answer to the client."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from model.errors import CrossturnError, InputError
from server.client import EngineClient
from server.errors import EngineFaultError, RateLimitError, UnavailableError
from server.events import Emit, Event, Failed, Finished, GenerationRequest, Progress
from server.http.stream import EventStream, Frame, StreamManners, Watch, run_until_disconnect
from server.settings import Settings
from server.telemetry.record import RequestRecord
from server.turn.reply import Replies, plan_body

CLIENT_GONE = 499
"""nginx's status for a client that has disconnected; only the middleware sees it."""
PLAN_HEADER = "X-Crossturn-Plan"
"""The ``crossturn`` object as JSON in ASCII, for clients that read only headers."""


class Wakeable(Protocol):
    """The part of an event loop that a courier uses."""

    def call_soon_threadsafe(self, callback: Callable[[], None], /) -> object:
        """Call from the loop's thread, soon. Raises RuntimeError when the loop is closed."""
        ...


class Courier:
    """Brings events from the engine thread to the event loop, many per wake-up: the engine emits those of all
    its replies at the same moment, and a wake-up takes a system call and the interpreter's lock."""

    def __init__(self, loop: Wakeable) -> None:
        self._loop = loop
        self._posted: deque[tuple[asyncio.Queue[Event], Event]] = deque()
        self._is_called = False

    def post(self, queue: asyncio.Queue[Event], event: Event) -> None:
        """Put ``event`` in ``queue``, in the order of posting. From any thread."""
        self._posted.append((queue, event))
        if not self._is_called:
            self._is_called = True
            # The loop may be closed already while the engine still winds down.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # first: an event posted from here on is either found below or calls again
        while self._posted:
            queue, event = self._posted.popleft()
            queue.put_nowait(event)


class Run:
    """Carries the events of a request from the engine thread to its encoder, and a cancellation back.

    A run may consist of several generation requests, one for each of a list of prompts; their replies are
    numbered consecutively.

    Args:
        engine: generates the replies.
        courier: brings the engine's events.
        record: the run's line in the log, written when the run ends.
        live: the runs in progress; this one is among them while its events are consumed.
        stall_s: the run fails when neither it nor the engine has made progress for so long.
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
        self._now = asyncio.get_running_loop().time
        self._pulse = 0
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def _emit_from(self, first_index: int) -> Emit:
        """The ``emit`` of a request whose replies are numbered from ``first_index``."""

        def emit(event: Event) -> None:
            if first_index and isinstance(event, Progress | Finished):
                event = replace(event, index=event.index + first_index)
            self._courier.post(self._queue, event)

        return emit

    def fail(self, failure: Failed) -> None:
        """End the run with ``failure`` as its last event."""
        self._queue.put_nowait(failure)

    async def events(self, requests: Sequence[GenerationRequest]) -> AsyncGenerator[Event, None]:
        """Submit ``requests`` and yield their events up to the end of the last reply.

        Closing the iterator, or cancelling the task that consumes it, cancels the requests.

        Raises:
            CrossturnError: a request failed, or the engine has stalled.
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
        self._watch.noted_at = self._now()
        return await self._queue.get()

    def _on_silence(self) -> None:
        """No event has come for a while: fail the run unless the engine has made progress."""
        n_steps = self._engine.n_steps
        if n_steps == self._pulse and self._queue.empty():
            self.fail(Failed(f"The engine has not moved for {self._stall_s:g} s.", kind="internal"))
        self._pulse = n_steps


def http_error(failure: Failed) -> CrossturnError:
    """The error that a client gets for ``failure``."""
    if failure.kind == "invalid":
        return InputError(failure.message, param=failure.param, code="invalid_value")
    if failure.kind == "rate_limited":
        return RateLimitError(failure.message, retry_after_s=failure.retry_after_s or 1.0)
    if failure.kind in ("overloaded", "shutting_down"):
        return UnavailableError(
            failure.message, code=failure.kind, retry_after_s=failure.retry_after_s or 1.0
        )
    return EngineFaultError(failure.message, code=failure.kind)


class ReplyEncoder(StreamManners, Protocol):
    """Encodes the replies of one request in its dialect."""

    @property
    def replies(self) -> Replies:
        """The replies so far: those of the events that :meth:`frames` was given."""
        ...

    def frames(self, event: Event) -> Iterable[Frame]:
        """Add ``event`` to the replies; the frames that it makes in a stream."""
        ...

    def body(self) -> Mapping[str, Any]:
        """The whole body, after the last event."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Runs composed requests and sends their replies, as a stream or as one body.

    Attributes:
        headers: of the response, besides ``X-Request-Id`` and the plan.
        on_delivered: called after the last event is encoded.
    """

    run: Run
    generations: Sequence[GenerationRequest]
    encoder: ReplyEncoder
    headers: Mapping[str, str] = field(default_factory=dict)
    on_delivered: Callable[[], None] = lambda: None

    async def send(self, request: Request, settings: Settings, *, stream: bool) -> Response:
        """The response: a stream at once, or the body when it is complete."""
        self.run.record.trace_parent = request.headers.get("traceparent")
        if stream:
            return EventStream(
                self._frames(),
                self.encoder,
                headers=self._headers,
                keep_alive_s=settings.keep_alive_seconds,
                stall_s=settings.stall_seconds,
            )
        body = await run_until_disconnect(self._body(), request.receive)
        if body is None:
            return Response(status_code=CLIENT_GONE)
        return JSONResponse(body, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        """The headers of the response; the plan is among them as soon as it is known."""
        plans = self.encoder.replies.plans
        plan = {PLAN_HEADER: json.dumps(plan_body(plans[0]))} if plans else {}
        return {"X-Request-Id": self.run.record.id, **plan, **self.headers}

    async def _frames(self) -> AsyncGenerator[Frame, None]:
        async with aclosing(self.run.events(self.generations)) as events:
            async for event in events:
                for frame in self._encoded(event):
                    yield frame
        self.on_delivered()

    def _encoded(self, event: Event) -> list[Frame]:
        try:
            return list(self.encoder.frames(event))
        except Exception:
            self.run.record.observe(Failed("The reply could not be encoded.", kind="internal"))
            raise

    async def _body(self) -> Mapping[str, Any]:
        async with aclosing(self._frames()) as frames:
            async for _ in frames:
                pass
        return self.encoder.body()
