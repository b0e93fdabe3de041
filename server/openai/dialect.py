"""OpenAI's chat and completions dialect, as the app takes it in."""

from __future__ import annotations

from server.http.dialect import Dialect
from server.openai import chat, completions, models
from server.openai.chat_schema import ChatRequest
from server.openai.completion_schema import CompletionRequest

OPENAI = Dialect(
    routers=(chat.router, completions.router, models.router),
    bodies=(ChatRequest, CompletionRequest),
)
