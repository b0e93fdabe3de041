"""The bodies of ``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from server.http.schema import Schema
from server.openai.messages import Message, Tool


class TokenizeRequest(Schema):
    """A text, or a conversation as the model would read it. In a text, control strings are control tokens."""

    model: Annotated[str, Field(min_length=1)] | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None


class DetokenizeRequest(Schema):
    """Token ids."""

    model: Annotated[str, Field(min_length=1)] | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
