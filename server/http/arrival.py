"""A request as it comes in: who sent it, when, and its bytes, not read yet."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from server.http.auth import authenticate
from server.http.body import read_json_body
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for a generation.

    Attributes:
        id: what the reply, the log and the engine call it.
        created: Unix time.
        tenant: whose memory it may use.
        body: JSON, not parsed yet.
    """

    id: str
    created: int
    tenant: str | None
    headers: Mapping[str, str]
    body: bytes


def session_of(arrival: Arrival, *keys: str | None) -> str | None:
    """The session's name: the header ``X-Session-Id``, else the first of ``keys`` that is not empty."""
    return next((key for key in (arrival.headers.get("x-session-id"), *keys) if key), None)


async def receive(request: Request, settings: Settings, *, prefix: str) -> Arrival:
    """Let ``request`` in and read its body; its id begins with ``prefix``, as OpenAI's do.

    Raises:
        HttpError: it has no key, or a body that is not taken.
    """
    tenant = authenticate(request.headers, settings.api_keys)
    return Arrival(
        id=f"{prefix}{'' if prefix.endswith('_') else '-'}{uuid.uuid4().hex}",
        created=int(time.time()),
        tenant=tenant,
        headers=request.headers,
        body=await read_json_body(request, limit=settings.max_body),
    )
