"""A request as it comes in: who sent it, when, and its bytes, not parsed yet. Routes depend on these."""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from server.errors import AuthenticationError, BodyTooLargeError, ForbiddenError, MediaTypeError
from server.http.arrivals import Arriving
from server.http.gateway import Gateway
from server.telemetry.log import current_request

_DISCARD_FACTOR = 4
"""A body up to so many times the limit is read to its end before it is refused: a client that is still
sending does not listen for the answer."""

_BEARER = HTTPBearer(auto_error=False, description="On a server that has API keys.")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same, as other clients send it.")


async def gateway_of(request: Request) -> Gateway:
    """What the app was made around."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def authenticate(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    header: Annotated[str | None, Security(_HEADER)],
) -> str | None:
    """The tenant of a request, None on a server without keys.

    Raises:
        AuthenticationError: the request carries no key that is known here.
    """
    gateway: Gateway = request.app.state.gateway
    return gateway.keys.tenant_of(bearer.credentials.strip() if bearer else header)


async def authorise_figures(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    header: Annotated[str | None, Security(_HEADER)],
) -> None:
    """Let in who may read what all tenants together do: the metrics key, or the only API key.

    Raises:
        HttpError: anybody else.
    """
    gateway: Gateway = request.app.state.gateway
    given = (bearer.credentials.strip() if bearer else header) or ""
    wanted = gateway.settings.metrics_key
    if wanted is not None:
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise AuthenticationError(
                "The key that --metrics-key names is needed here.", code="invalid_api_key"
            )
        return
    gateway.keys.tenant_of(given)
    if gateway.keys.are_several:
        raise ForbiddenError(
            "These are the figures of all API keys together; a key of its own, --metrics-key, reads them.",
            code="metrics_key_needed",
        )


async def read_json_body(request: Request) -> bytes:
    """The body's bytes, not parsed yet.

    Raises:
        MediaTypeError: its content type is not JSON.
        BodyTooLargeError: it is longer than the server takes, declared or not.
        LateBodyError: it does not arrive in time.
        UnavailableError: the server is about to stop, or others' bodies take the memory there is for them.
    """
    gateway: Gateway = request.app.state.gateway
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError(
            f"The content type is '{media_type or 'not given'}'; send 'Content-Type: application/json'."
        )
    async with gateway.arrivals.one(gateway.settings.receive_seconds) as arriving:
        return await _read(request, gateway.settings.max_body, arriving)


async def _read(request: Request, limit: int, arriving: Arriving) -> bytes:
    chunks: list[bytes] = []
    n_bytes = 0
    async for chunk in request.stream():
        n_bytes += len(chunk)
        if n_bytes <= limit:
            arriving.hold(len(chunk))
            chunks.append(chunk)
        elif n_bytes > limit * _DISCARD_FACTOR:
            break
    if n_bytes > limit:
        raise BodyTooLargeError(f"The body is longer than this server's limit of {limit} bytes.")
    return b"".join(chunks)


TheGateway = Annotated[Gateway, Depends(gateway_of)]
Tenant = Annotated[str | None, Depends(authenticate)]
JsonBody = Annotated[bytes, Depends(read_json_body)]


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

    def session(self, *keys: str | None) -> str | None:
        """The session's name: the header ``X-Session-Id``, else the first of ``keys`` that is not empty."""
        return next((key for key in (self.headers.get("x-session-id"), *keys) if key), None)


def arrives(prefix: str) -> Any:
    """A dependency: the arrival of a request that has a key and a body. Its id begins with ``prefix``
    (``chatcmpl-``), as the dialect's do.

    Raises:
        HttpError: it has no key, or a body that is not taken.
    """

    async def arrive(request: Request, tenant: Tenant, body: JsonBody) -> Arrival:
        request.state.request_id = request_id = f"{prefix}{uuid.uuid4().hex}"
        current_request.set(request_id)
        return Arrival(
            id=request_id,
            created=int(time.time()),
            tenant=tenant,
            headers=request.headers,
            body=body,
        )

    return Depends(arrive)
