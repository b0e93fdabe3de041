"""A client that goes away ends the work that is done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


async def run_until_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Await ``work``, or cancel it when the client disconnects; None says that the client is gone.

    ``receive`` must have delivered the whole body before.
    """
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.cancel()
        is_done = working.done()
        working.cancel()
        await asyncio.wait({working, listening})
    if is_done:
        return working.result()
    if not working.cancelled():
        working.exception()  # nobody is left to be told of it
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
