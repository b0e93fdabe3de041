"""Ids: of responses, and of items, where those that the server makes name the response they stand in."""

from __future__ import annotations

import re
from uuid import uuid4

RESPONSE = "resp_"
_RESPONSE = re.compile(r"resp_([0-9a-f]{32})")
_MADE = re.compile(r"[a-z]+_([0-9a-f]{32})_[0-9]+")


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
