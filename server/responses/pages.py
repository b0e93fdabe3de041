"""Lists, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from server.errors import NotFoundError
from server.responses.reply_schema import ItemBody, ItemList


def page_of(
    items: Sequence[ItemBody], *, limit: int, order: Literal["asc", "desc"], after: str | None
) -> ItemList:
    """The ``limit`` items behind the one whose id is ``after``.

    Args:
        items: oldest first; ``order`` says how the list goes.

    Raises:
        NotFoundError: there is no item ``after``.
    """
    listed = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        place = next((i for i, item in enumerate(listed) if item["id"] == after), None)
        if place is None:
            raise NotFoundError(f"Item with id '{after}' not found.", param="after", code="item_not_found")
        listed = listed[place + 1 :]
    page = listed[:limit]
    return ItemList(
        object="list",
        data=page,
        first_id=page[0]["id"] if page else "",
        last_id=page[-1]["id"] if page else "",
        has_more=len(listed) > len(page),
    )
