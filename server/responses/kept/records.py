"""What is kept of one response: what came in, what went out, and what it went on from."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any

_INDEX_BYTES = 512
"""What a record takes in the store's own tables, roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One response.

    Attributes:
        tenant: whose it is; None on a server without API keys.
        session: the session it belongs to; who goes on from it without naming one joins that.
        previous: the response it went on from.
        items: what the request itself brought, each with an id, in order.
        response: the body, as it was sent.
        is_hidden: deleted by its client, kept for those that went on from it.
    """

    id: str
    tenant: str | None
    session: str | None
    previous: str | None
    items: list[dict[str, Any]]
    response: dict[str, Any]
    is_hidden: bool = False

    @property
    def output(self) -> list[dict[str, Any]]:
        """The items that the model made."""
        items: list[dict[str, Any]] = self.response["output"]
        return items


@dataclass(slots=True)
class Packed:
    """A record at rest, and what must be known of it without unpacking it."""

    data: bytes
    tenant: str | None
    previous: str | None
    is_hidden: bool = False
    n_children: int = 0

    @classmethod
    def of(cls, record: Record) -> Packed:
        text = json.dumps(asdict(record), separators=(",", ":"))
        return cls(
            data=zlib.compress(text.encode(), 1),
            tenant=record.tenant,
            previous=record.previous,
            is_hidden=record.is_hidden,
        )

    def record(self) -> Record:
        return unpack(self.data)

    @property
    def n_bytes(self) -> int:
        """What it takes in memory."""
        return len(self.data) + _INDEX_BYTES


def unpack(data: bytes) -> Record:
    """The record in ``data``.

    Raises:
        ValueError, zlib.error, TypeError, KeyError: it is damaged.
    """
    return Record(**json.loads(zlib.decompress(data)))
