"""The last leg of every generation: events are encoded and sent, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from server.events import Event, Failed, GenerationRequest
from server.http.disconnect import run_until_disconnect
from server.http.run import Run
from server.http.stream import EventStream, Frame, StreamManners
from server.settings import Settings
from server.turn.reply import Replies

CLIENT_GONE = 499
"""nginx's status for a client that left; nobody sees it but the middleware."""


class ReplyEncoder(StreamManners, Protocol):
    """One dialect's way to tell a reply."""

    @property
    def replies(self) -> Replies:
        """What was told so far; :meth:`frames` takes every event in."""
        ...

    def frames(self, event: Event) -> Iterable[Frame]:
        """Take in ``event``; the frames that it makes in a stream."""
        ...

    def body(self) -> Mapping[str, Any]:
        """The whole reply, once every event was taken in."""
        ...


def _nothing() -> None:
    """Nobody waits for the delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A composed request on its way out.

    Attributes:
        headers: of the response, besides ``X-Request-Id``.
        on_delivered: called when the last event was encoded.
    """

    run: Run
    generations: Sequence[GenerationRequest]
    encoder: ReplyEncoder
    headers: Mapping[str, str] = field(default_factory=dict)
    on_delivered: Callable[[], None] = _nothing

    async def send(self, request: Request, settings: Settings, *, stream: bool) -> Response:
        """The response: a stream, or the whole body once it is there."""
        headers = {"X-Request-Id": self.run.record.id, **self.headers}
        if stream:
            return EventStream(
                self._frames(),
                self.encoder,
                headers=headers,
                keep_alive_s=settings.keep_alive_seconds,
                stall_s=settings.stall_seconds,
            )
        body = await run_until_disconnect(self._body(), request.receive)
        return Response(status_code=CLIENT_GONE) if body is None else JSONResponse(body, headers=headers)

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
