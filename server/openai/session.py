"""Which slot a request's session has."""

from __future__ import annotations

from collections.abc import Mapping

from cache.planner import CrossTurnSlotId
from server.openai.chat_schema import SamplingFields


def slot_of(fields: SamplingFields, headers: Mapping[str, str], tenant: str | None) -> CrossTurnSlotId:
    """The slot named by the header ``X-Session-Id``, ``prompt_cache_key`` or ``metadata.session_id``.

    The first of them that is not empty counts; without any it is the tenant's default slot.
    """
    keys = (
        headers.get("x-session-id"),
        fields.prompt_cache_key,
        (fields.metadata or {}).get("session_id"),
    )
    return CrossTurnSlotId.for_session(tenant, next((key for key in keys if key), None))
