"""Server-sent events: frames, keep-alive comments, and the end of a stream whatever happens."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
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
        # One task for all chunks, for one each would take three more turns of the loop. It is not ahead by
        # more than a chunk.
        made: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue(1)
        making = asyncio.ensure_future(_fill(made, self._chunks))
        try:
            while True:
                try:
                    async with asyncio.timeout(self._keep_alive_s):
                        chunk = await made.get()
                except TimeoutError:
                    yield KEEP_ALIVE
                    continue
                if chunk is None:
                    break
                yield frame(chunk)
            await making
        finally:
            await _abandon(making)


async def _fill(
    made: asyncio.Queue[Mapping[str, Any] | None], chunks: AsyncGenerator[Mapping[str, Any]]
) -> None:
    """Put all ``chunks`` in ``made``, and None where they end or fail; cancelled, nobody waits for it."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                await made.put(chunk)
    except Exception:
        await made.put(None)
        raise
    await made.put(None)


async def _abandon(task: asyncio.Future[Any]) -> None:
    """Cancel ``task`` and wait until it is over, so that its generator is closed."""
    task.cancel()
    await asyncio.wait({task})
