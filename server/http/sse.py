"""Server-sent events: frames, keep-alive comments, and the end of a stream whatever happens."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from model.errors import CrossturnError
from server.errors import error_body
from server.http.disconnect import run_until_disconnect
from server.http.watch import Watch

log = logging.getLogger("crossturn.sse")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, proxies see that the connection lives."""


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def frame(body: Mapping[str, Any]) -> bytes:
    """``body`` as one ``data:`` frame."""
    return f"data: {_json.encode(body)}\n\n".encode()


class EventStream(Response):
    """Streams the chunks of one reply.

    Headers wait for the first chunk or the first keep-alive, whichever comes first: what fails before that is
    an ordinary error response, what fails later one error frame. ``[DONE]`` ends every stream.

    Args:
        chunks: bodies of the frames, in order; closed when the client goes away.
        keep_alive_s: send a comment when nothing else was sent for so long.
        stall_s: close the connection when the client takes no bytes for so long.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[Mapping[str, Any], None],
        *,
        headers: Mapping[str, str],
        keep_alive_s: float,
        stall_s: float,
    ) -> None:
        super().__init__(headers=headers, media_type="text/event-stream")
        self._chunks = chunks
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        await run_until_disconnect(self._stream(send), receive)

    async def _stream(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        wire = _Wire(send, start)

        def stalled() -> None:
            if wire.is_sending:
                patience.reschedule(0)

        with Watch(self._stall_s, stalled) as stall, Watch(self._keep_alive_s, wire.comment) as silence:
            try:
                async with asyncio.timeout(None) as patience, aclosing(self._frames(wire)) as frames:
                    async for data in frames:
                        stall.note()
                        await wire.send(data)
                        silence.note()
            except TimeoutError:
                if not patience.expired():
                    raise
                log.warning("a client took no bytes for %g s: its stream is closed", self._stall_s)
            finally:
                wire.close()

    async def _frames(self, wire: _Wire) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    yield frame(chunk)
        except Exception as error:
            if not wire.has_begun:
                raise
            if not isinstance(error, CrossturnError):
                log.exception("fault in a stream")
            yield frame(error_body(error))
        yield DONE


class _Wire:
    """Sends the frames of one response, and comments between them.

    A comment is sent beside the stream, whose task waits for its next chunk meanwhile; frames wait for it.

    Args:
        start: what is sent before the first of them.
    """

    def __init__(self, send: Send, start: Message) -> None:
        self._send = send
        self._start = start
        self._turn = asyncio.Lock()
        self._commenting: asyncio.Future[None] | None = None
        self.has_begun = False

    @property
    def is_sending(self) -> bool:
        """Something is on its way that the client has not taken yet."""
        return self._turn.locked()

    def comment(self) -> None:
        """Send a comment if the wire is free."""
        if not self.is_sending:
            self._commenting = asyncio.ensure_future(self.send(KEEP_ALIVE))

    async def send(self, data: bytes) -> None:
        """Send ``data``; nothing follows :data:`DONE`."""
        async with self._turn:
            if not self.has_begun:
                self.has_begun = True
                await self._send(self._start)
            await self._send({"type": "http.response.body", "body": data, "more_body": data is not DONE})

    def close(self) -> None:
        """Send no more: a comment that is not taken yet is given up."""
        if self._commenting is not None:
            self._commenting.cancel()
