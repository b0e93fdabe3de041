"""Anthropic's Messages dialect, as the app takes it in."""

from __future__ import annotations

from server.anthropic import messages, models
from server.anthropic.errors import error_body, speaks
from server.anthropic.schema.requests import CountTokensRequest, MessagesRequest
from server.http.dialect import Dialect

ANTHROPIC = Dialect(
    routers=(messages.router,),
    contested=(models.router,),
    bodies=(MessagesRequest, CountTokensRequest),
    speaks=speaks,
    error_body=error_body,
)
