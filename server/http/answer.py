"""The last leg of every generation: events are encoded and sent, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from server.events import Event, Failed, GenerationRequest
from server.http.run import Run, run_until_disconnect
from server.http.stream import EventStream, Frame, StreamManners
from server.settings import Settings
from server.turn.reply import Replies, plan_body

CLIENT_GONE = 499
"""nginx's status for a client that left; nobody sees it but the middleware."""
PLAN_HEADER = "X-Crossturn-Plan"
"""For clients that look at headers only: the ``crossturn`` object as JSON, in ASCII."""


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
        headers: of the response, besides ``X-Request-Id`` and the plan.
        on_delivered: called when the last event was encoded.
    """

    run: Run
    generations: Sequence[GenerationRequest]
    encoder: ReplyEncoder
    headers: Mapping[str, str] = field(default_factory=dict)
    on_delivered: Callable[[], None] = _nothing

    async def send(self, request: Request, settings: Settings, *, stream: bool) -> Response:
        """The response: a stream, or the whole body once it is there."""
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
        """The plan is among them as soon as there is one."""
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
