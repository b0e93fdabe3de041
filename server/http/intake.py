"""Requests as they come in: API keys and their tenants, and bodies that are not parsed yet. Routes take these
as dependencies."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from model.errors import CrossturnError
from server.errors import AuthenticationError, BodyTooLargeError, ForbiddenError, MediaTypeError
from server.http.gateway import Arriving, Gateway
from server.settings import Settings
from server.telemetry.log import current_request

_DISCARD_FACTOR = 4
"""A body of up to so many times the limit is received to its end before it is refused: a client that is still
sending does not read the response."""

_BEARER = HTTPBearer(auto_error=False, description="On a server that has API keys.")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same, as other clients send it.")


class KeyFileError(CrossturnError):
    """The file of keys cannot be used; the message is one line for a terminal."""


@dataclass(frozen=True, slots=True)
class Key:
    """A valid API key, of which only the digest is kept.

    Attributes:
        tenant: the owner; safe to log.
        digest: SHA-256 of the key.
    """

    tenant: str
    digest: bytes


class Keys:
    """All valid keys; without any, every request is let in.

    Args:
        keys: at most one of each tenant.
    """

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The keys in the settings, and those in the key file.

        Raises:
            KeyFileError: the file cannot be read, or a line of it is wrong.
        """
        given = [Key(tenant_of_key(key), _digest(key)) for key in dict.fromkeys(settings.api_keys)]
        filed = [] if settings.api_key_file is None else read_keys(settings.api_key_file)
        return cls([*given, *filed])

    @property
    def are_asked_for(self) -> bool:
        """Whether a request must carry a key."""
        return bool(self._keys)

    @property
    def are_several(self) -> bool:
        """Whether there is more than one tenant."""
        return len(self._keys) > 1

    def tenant_of(self, given: str | None) -> str | None:
        """The tenant of a request that carries ``given``; None on a server without keys.

        Raises:
            AuthenticationError: the request carries no valid key.
        """
        if not self._keys:
            return None
        if not given:
            raise AuthenticationError(
                "No API key was given; send it as 'Authorization: Bearer KEY'.", code="invalid_api_key"
            )
        # All keys are compared, in constant time, so that the time taken tells nothing about them.
        digest = _digest(given)
        known = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if not known:
            raise AuthenticationError("This API key is not valid.", code="invalid_api_key")
        return known[0].tenant


def tenant_of_key(key: str) -> str:
    """The tenant of a key from the command line: a short digest, safe to log."""
    return hashlib.blake2b(key.encode(), digest_size=6).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """The keys in the file at ``path``: on each line a tenant's name and the SHA-256 of its key in
    hexadecimal. Blank lines and lines that begin with ``#`` are skipped.

    Raises:
        KeyFileError: the file cannot be read, a line of it is wrong, or it has no key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"the key file {path} cannot be read: {error}") from None
    keys: dict[str, Key] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]{1,64})\s+([0-9a-fA-F]{64})", text)
        if match is None:
            # The message does not quote the line: it may hold a key in plain text.
            raise KeyFileError(f"line {number} of the key file {path} is not a name and a SHA-256")
        name, digest = match.groups()
        if name in keys:
            raise KeyFileError(f"line {number} of the key file {path} names '{name}' again")
        keys[name] = Key(name, bytes.fromhex(digest))
    if not keys:
        raise KeyFileError(f"the key file {path} has no keys")
    return list(keys.values())


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def gateway_of(request: Request) -> Gateway:
    """The gateway of the app."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def authenticate(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    header: Annotated[str | None, Security(_HEADER)],
) -> str | None:
    """The tenant of a request, None on a server without keys.

    Raises:
        AuthenticationError: the request carries no valid key.
    """
    keys: Keys = request.app.state.keys
    return keys.tenant_of(bearer.credentials.strip() if bearer else header)


async def authorise_figures(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    header: Annotated[str | None, Security(_HEADER)],
) -> None:
    """Let in a request that may read figures of all tenants: with the metrics key, or with the only API key.

    Raises:
        HttpError: the request carries neither.
    """
    gateway: Gateway = request.app.state.gateway
    given = (bearer.credentials.strip() if bearer else header) or ""
    wanted = gateway.settings.metrics_key
    if wanted is not None:
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise AuthenticationError(
                "This endpoint needs the key that --metrics-key sets.", code="invalid_api_key"
            )
        return
    keys: Keys = request.app.state.keys
    keys.tenant_of(given)
    if keys.are_several:
        raise ForbiddenError(
            "These figures cover all API keys: only the key that --metrics-key sets may read them.",
            code="metrics_key_needed",
        )


async def read_json_body(request: Request) -> bytes:
    """The body's bytes, not parsed yet.

    Raises:
        MediaTypeError: its content type is not JSON.
        BodyTooLargeError: it is longer than the limit, whatever length it declares.
        LateBodyError: it does not arrive in time.
        UnavailableError: the server is about to stop, or other bodies take up the memory for bodies.
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
        id: of the request, in the reply, the log and the engine.
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
    """A dependency: the arrival of a request with a valid key and a body. Its id begins with ``prefix``, such
    as ``chatcmpl-``.

    Raises:
        HttpError: its key or its body is refused.
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
