"""OpenAI's Responses dialect, as the app takes it in."""

from __future__ import annotations

from server.http.dialect import Dialect
from server.responses import router
from server.responses.schema.requests import InputTokensRequest, ResponsesRequest

RESPONSES = Dialect(routers=(router.router,), bodies=(ResponsesRequest, InputTokensRequest))
