"""Who asks: API keys and the tenants they stand for."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from server.errors import AuthenticationError


def tenant_of_key(key: str) -> str:
    """The tenant that ``key`` stands for: a short digest, safe to log."""
    return hashlib.blake2b(key.encode(), digest_size=6).hexdigest()


def authenticate(headers: Mapping[str, str], api_keys: Sequence[str]) -> str | None:
    """The tenant of a request, None on a server without keys.

    Raises:
        AuthenticationError: the request carries no key that the server knows.
    """
    if not api_keys:
        return None
    given = _key_in(headers)
    if given is None:
        raise AuthenticationError(
            "No API key was given; send it as 'Authorization: Bearer KEY'.", code="invalid_api_key"
        )
    # All keys are compared, in constant time, so that the time taken tells nothing about them.
    known = [key for key in api_keys if hmac.compare_digest(key.encode(), given.encode())]
    if not known:
        raise AuthenticationError("This API key is not known here.", code="invalid_api_key")
    return tenant_of_key(known[0])


def _key_in(headers: Mapping[str, str]) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key") or None
