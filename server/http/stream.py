"""Server-sent events: frames, keep-alives, clients that disconnect or stall, and how a stream ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from model.errors import CrossturnError

log = logging.getLogger("crossturn.stream")

T = TypeVar("T")

COMMENT = b": keep-alive\n\n"
"""A comment: clients skip it, and proxies see that the connection is alive."""

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Characters that JSON need not escape, and that some clients take for the end of a line."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream: its JSON, and its name where the dialect has names."""

    data: Mapping[str, Any]
    event: str | None = None

    def encode(self) -> bytes:
        """The bytes on the wire."""
        data = _json.encode(self.data)
        if not data.isascii():
            data = data.translate(_LINE_ENDS)
        name = "" if self.event is None else f"event: {self.event}\n"
        return f"{name}data: {data}\n\n".encode()


class StreamManners(Protocol):
    """What a dialect sends in its streams besides the reply."""

    @property
    def keep_alive(self) -> bytes:
        """Sent after a while without frames."""
        ...

    @property
    def last(self) -> bytes:
        """The end of every stream, of a failed one too; may be empty."""
        ...

    def failure(self, error: Exception) -> Iterable[Frame]:
        """The frames that report ``error`` in a stream that has begun."""
        ...


class EventStream(Response):
    """Streams the frames of one reply.

    The headers wait for the first frame or the first keep-alive, whichever comes first. A failure before that
    is an ordinary error response; a later one is reported in the stream, as its dialect does.

    Args:
        frames: in order; the generator is closed when the client disconnects.
        manners: the dialect's.
        headers: called when the first frame or keep-alive is sent.
        keep_alive_s: a keep-alive is sent after so long without a frame.
        stall_s: the connection is closed when the client takes no bytes for so long.
    """

    def __init__(
        self,
        frames: AsyncGenerator[Frame, None],
        manners: StreamManners,
        *,
        headers: Callable[[], Mapping[str, str]],
        keep_alive_s: float,
        stall_s: float,
    ) -> None:
        super().__init__(media_type="text/event-stream")
        self._late_headers = headers
        self._frames = frames
        self._manners = manners
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        await run_until_disconnect(self._stream(send), receive)

    async def _stream(self, send: Send) -> None:
        wire = _Wire(send, self._start, self._manners.keep_alive)
        now = asyncio.get_running_loop().time

        def stalled() -> None:
            if wire.is_sending:
                patience.reschedule(0)

        with Watch(self._stall_s, stalled) as stall, Watch(self._keep_alive_s, wire.keep_alive) as silence:
            try:
                async with asyncio.timeout(None) as patience, aclosing(self._encoded(wire)) as encoded:
                    async for data in encoded:
                        stall.noted_at = now()
                        await wire.send(data)
                        silence.noted_at = now()
                    await wire.send(self._manners.last, is_last=True)
            except TimeoutError:
                if not patience.expired():
                    raise
                log.warning("a client took no bytes for %g s: its stream is closed", self._stall_s)
            finally:
                wire.close()

    def _start(self) -> Message:
        self.headers.update(self._late_headers())
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}

    async def _encoded(self, wire: _Wire) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._frames) as frames:
                async for frame in frames:
                    yield frame.encode()
        except Exception as error:
            if not wire.has_begun:
                raise
            if not isinstance(error, CrossturnError):
                log.exception("fault in a stream")
            for frame in self._manners.failure(error):
                yield frame.encode()


class _Wire:
    """Sends the frames of one response, and keep-alives between them.

    Keep-alives are sent by tasks of their own while the stream waits for its next frame; a lock keeps the two
    apart.

    Args:
        start: makes the message that comes before the first of them.
        keep_alive: the bytes of a keep-alive.
    """

    def __init__(self, send: Send, start: Callable[[], Message], keep_alive: bytes) -> None:
        self._send = send
        self._start = start
        self._keep_alive = keep_alive
        self._turn = asyncio.Lock()
        self._keeping_alive: asyncio.Future[None] | None = None
        self.has_begun = False

    @property
    def is_sending(self) -> bool:
        """Whether bytes are being sent that the client has not taken yet."""
        return self._turn.locked()

    def keep_alive(self) -> None:
        """Send a keep-alive if the wire is free."""
        if not self.is_sending:
            self._keeping_alive = asyncio.ensure_future(self.send(self._keep_alive))

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        """Send ``data``; nothing follows the last."""
        async with self._turn:
            if not self.has_begun:
                self.has_begun = True
                await self._send(self._start())
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    def close(self) -> None:
        """Cancel a keep-alive that the client has not taken yet."""
        if self._keeping_alive is not None:
            self._keeping_alive.cancel()


class Clock(Protocol):
    """The part of an event loop that a watch uses."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


class Timer(Protocol):
    """A call that is scheduled."""

    def cancel(self) -> None: ...


class Watch:
    """Calls ``on_silence`` when ``seconds`` have passed since :attr:`noted_at`, and again after as many.

    Made for frequent events: noting one is an assignment and sets no timer. Runs while it is entered.

    Attributes:
        noted_at: when the last event happened, by the event loop's clock; set by the owner of the watch.
    """

    def __init__(self, seconds: float, on_silence: Callable[[], None], *, loop: Clock | None = None) -> None:
        self._seconds = seconds
        self._on_silence = on_silence
        self._loop = loop or asyncio.get_running_loop()
        self.noted_at = 0.0
        self._timer: Timer | None = None

    def __enter__(self) -> Self:
        self.noted_at = self._loop.time()
        self._look_in(self._seconds)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._timer is not None
        self._timer.cancel()

    def _look_in(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        rest = self.noted_at + self._seconds - now
        if rest > 0:
            self._look_in(rest)
            return
        self.noted_at = now
        self._look_in(self._seconds)
        self._on_silence()


async def run_until_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Await ``work``, or cancel it when the client disconnects; None when the client has disconnected.

    The whole body must have been received before.
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
        working.exception()  # retrieved, so that asyncio does not log it as never retrieved
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
