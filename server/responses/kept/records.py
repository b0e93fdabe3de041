"""What is kept of one response: its input, its output, and the response that it continues; and the ids by
which it and its items are found."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

_INDEX_BYTES = 512
"""Roughly what a record takes up in the tables of the store."""
RESPONSE = "resp_"
_RESPONSE = re.compile(r"resp_([0-9a-f]{32})")
_MADE = re.compile(r"[a-z]+_([0-9a-f]{32})_[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One response.

    Attributes:
        tenant: the owner; None on a server without API keys.
        session: the session that it belongs to; a request that continues it joins this session by default.
        previous: the response that it continues.
        items: the request's own items in order, each with an id.
        response: the body, as it was sent.
        is_hidden: deleted by its client, but kept for the responses that continue it.
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
        """The generated items."""
        items: list[dict[str, Any]] = self.response["output"]
        return items


@dataclass(slots=True)
class Packed:
    """A compressed record, and what must be known without decompressing it."""

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
        """Its size in memory."""
        return len(self.data) + _INDEX_BYTES


def unpack(data: bytes) -> Record:
    """The record in ``data``.

    Raises:
        ValueError, zlib.error, TypeError, KeyError: it is damaged.
    """
    return Record(**json.loads(zlib.decompress(data)))


def is_response_id(name: str) -> bool:
    """Whether ``name`` has the form of a response id."""
    return _RESPONSE.fullmatch(name) is not None


def made_id(prefix: str, response_id: str, index: int) -> str:
    """The unique id of item ``index`` of a response."""
    return f"{prefix}_{response_id.removeprefix(RESPONSE)}_{index}"


def response_of(item_id: str) -> str | None:
    """The id of the response of a generated item; None for an id that a client has made."""
    made = _MADE.fullmatch(item_id)
    return None if made is None else f"{RESPONSE}{made[1]}"


def new_id(prefix: str) -> str:
    """An id for a client's item that has none."""
    return f"{prefix}_{uuid4().hex}"
