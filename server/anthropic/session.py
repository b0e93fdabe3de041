"""How a client of this dialect names its session."""

from __future__ import annotations

import json
from collections.abc import Mapping

OLD_FORM = "_session_"
"""Claude Code once wrote ``user_..._account_..._session_<uuid>``."""


def session_of(headers: Mapping[str, str], user_id: str | None) -> str | None:
    """The first that is not empty: ``X-Claude-Code-Session-Id``, the session within ``metadata.user_id``,
    ``X-Session-Id``."""
    candidates = (
        headers.get("x-claude-code-session-id"),
        _session_in(user_id or ""),
        headers.get("x-session-id"),
    )
    return next((session for session in candidates if session), None)


def _session_in(user_id: str) -> str | None:
    if OLD_FORM in user_id and not user_id.startswith("{"):
        return user_id.rpartition(OLD_FORM)[2]
    try:
        told = json.loads(user_id)
    except (ValueError, RecursionError):
        return None
    session = told.get("session_id") if isinstance(told, dict) else None
    return session if isinstance(session, str) else None
