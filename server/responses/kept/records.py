"""What is kept of one response: what came in, what went out, and what it went on from; and the ids by which
it and its items are found."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

_INDEX_BYTES = 512
"""What a record takes in the store's own tables, roughly."""
RESPONSE = "resp_"
_RESPONSE = re.compile(r"resp_([0-9a-f]{32})")
_MADE = re.compile(r"[a-z]+_([0-9a-f]{32})_[0-9]+")


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


def is_response_id(name: str) -> bool:
    """Whether a response may have this id."""
    return _RESPONSE.fullmatch(name) is not None


def made_id(prefix: str, response_id: str, index: int) -> str:
    """The id of item ``index`` of a response; no other item ever has it."""
    return f"{prefix}_{response_id.removeprefix(RESPONSE)}_{index}"


def response_of(item_id: str) -> str | None:
    """The response in which an item stands that the server made; None for ids of others' making."""
    made = _MADE.fullmatch(item_id)
    return None if made is None else f"{RESPONSE}{made[1]}"


def new_id(prefix: str) -> str:
    """An id for an item of a client's that has none."""
    return f"{prefix}_{uuid4().hex}"
