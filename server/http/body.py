"""Reads request bodies: JSON, up to a size."""

from __future__ import annotations

from starlette.requests import Request

from server.errors import BodyTooLargeError, MediaTypeError

_DISCARD_FACTOR = 4
"""A body up to so many times the limit is read to its end before it is refused: a client that is still
sending does not listen for the answer."""


async def read_json_body(request: Request, *, limit: int) -> bytes:
    """The body's bytes, not parsed yet.

    Args:
        limit: longest body that is taken, in bytes.

    Raises:
        MediaTypeError: its content type is not JSON.
        BodyTooLargeError: it is longer than ``limit``, declared or not.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError(
            f"The content type is '{media_type or 'not given'}'; send 'Content-Type: application/json'."
        )
    chunks: list[bytes] = []
    n_bytes = 0
    async for chunk in request.stream():
        n_bytes += len(chunk)
        if n_bytes <= limit:
            chunks.append(chunk)
        elif n_bytes > limit * _DISCARD_FACTOR:
            break
    if n_bytes > limit:
        raise BodyTooLargeError(f"The body is longer than this server's limit of {limit} bytes.")
    return b"".join(chunks)
