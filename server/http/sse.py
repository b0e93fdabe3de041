"""Server-sent events: frames, keep-alive comments, and the end of a stream whatever happens."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from model.errors import CrossturnError
from server.errors import error_body
from server.http.disconnect import run_until_disconnect

log = logging.getLogger("crossturn.sse")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, proxies see that the connection lives."""


def frame(body: Mapping[str, Any]) -> bytes:
    """``body`` as one ``data:`` frame."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


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
        has_begun = False
        async with aclosing(self._frames()) as frames:
            async for data in frames:
                if not has_begun:
                    start = {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                    await send(start)
                    has_begun = True
                body = {"type": "http.response.body", "body": data, "more_body": data is not DONE}
                try:
                    async with asyncio.timeout(self._stall_s):
                        await send(body)
                except TimeoutError:
                    log.warning("a client took no bytes for %g s: its stream is closed", self._stall_s)
                    return

    async def _frames(self) -> AsyncGenerator[bytes]:
        has_begun = False
        try:
            async with aclosing(self._on_a_clock()) as frames:
                async for data in frames:
                    has_begun = True
                    yield data
        except Exception as error:
            if not has_begun:
                raise
            if not isinstance(error, CrossturnError):
                log.exception("fault in a stream")
            yield frame(error_body(error))
        yield DONE

    async def _on_a_clock(self) -> AsyncGenerator[bytes]:
        """The frames of the chunks, with a comment wherever they keep the client waiting."""
        async with aclosing(self._chunks) as chunks:
            waiting = asyncio.ensure_future(_next(chunks))
            try:
                while True:
                    done, _ = await asyncio.wait({waiting}, timeout=self._keep_alive_s)
                    if not done:
                        yield KEEP_ALIVE
                        continue
                    chunk = waiting.result()
                    if chunk is None:
                        return
                    yield frame(chunk)
                    waiting = asyncio.ensure_future(_next(chunks))
            finally:
                await _abandon(waiting)


async def _next(chunks: AsyncIterator[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return await anext(chunks, None)


async def _abandon(task: asyncio.Future[Any]) -> None:
    """Cancel ``task`` and wait until it is over, so that its generator may be closed."""
    task.cancel()
    await asyncio.wait({task})
