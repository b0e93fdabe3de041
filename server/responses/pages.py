"""Lists, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence

from model.errors import InputError
from server.errors import NotFoundError
from server.responses.schema.replies import ItemBody, ItemList

MAX_LIMIT = 100


def page_of(items: Sequence[ItemBody], *, limit: str, order: str, after: str | None) -> ItemList:
    """The ``limit`` items behind the one whose id is ``after``; all three as a query has them.

    Args:
        items: oldest first; ``order`` says how the list goes.

    Raises:
        InputError: ``limit`` is no number from 1 to :data:`MAX_LIMIT`, or ``order`` neither asc nor desc.
        NotFoundError: there is no item ``after``.
    """
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_LIMIT:
        raise InputError(
            f"'limit' must be a number from 1 to {MAX_LIMIT}.", param="limit", code="invalid_value"
        )
    if order not in ("asc", "desc"):
        raise InputError("'order' must be asc or desc.", param="order", code="invalid_value")
    listed = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        place = next((i for i, item in enumerate(listed) if item["id"] == after), None)
        if place is None:
            raise NotFoundError(f"Item with id '{after}' not found.", param="after", code="item_not_found")
        listed = listed[place + 1 :]
    page = listed[: int(limit)]
    return ItemList(
        object="list",
        data=page,
        first_id=page[0]["id"] if page else "",
        last_id=page[-1]["id"] if page else "",
        has_more=len(listed) > len(page),
    )
