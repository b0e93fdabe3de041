"""Who asks: API keys and the tenants they stand for."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from model.errors import CrossturnError
from server.errors import AuthenticationError
from server.settings import Settings


class KeyFileError(CrossturnError):
    """The file of keys cannot be used; the message is one line for a terminal."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key that is known here, by its digest alone.

    Attributes:
        tenant: whose it is; safe to log.
        digest: SHA-256 of the key.
    """

    tenant: str
    digest: bytes


class Keys:
    """All keys that are taken; without any, everybody is let in.

    Args:
        keys: no two of one tenant.
    """

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The keys that the operator gave, and those of the file.

        Raises:
            KeyFileError: the file cannot be read, or a line of it is wrong.
        """
        given = [Key(tenant_of_key(key), _digest(key)) for key in dict.fromkeys(settings.api_keys)]
        filed = [] if settings.api_key_file is None else read_keys(settings.api_key_file)
        return cls([*given, *filed])

    @property
    def are_asked_for(self) -> bool:
        """Whether a request must carry one of them."""
        return bool(self._keys)

    @property
    def are_several(self) -> bool:
        """Whether there is more than one tenant."""
        return len(self._keys) > 1

    def tenant_of(self, given: str | None) -> str | None:
        """The tenant of a request that carries ``given``; None on a server without keys.

        Raises:
            AuthenticationError: the request carries no key that is known here.
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
            raise AuthenticationError("This API key is not known here.", code="invalid_api_key")
        return known[0].tenant


def tenant_of_key(key: str) -> str:
    """The tenant that a key of the command line stands for: a short digest, safe to log."""
    return hashlib.blake2b(key.encode(), digest_size=6).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """The keys in the file at ``path``: on each line a name and the SHA-256 of its key in hexadecimal. Blank
    lines and lines that begin with ``#`` say nothing.

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
            # The line itself is not told: it may hold a key in plain text.
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
