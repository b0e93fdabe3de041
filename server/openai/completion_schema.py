"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from server.http.schema import OnlyFalse
from server.openai.chat_schema import SamplingFields

TokenId = Annotated[int, Field(ge=0)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
MANY = Field(min_length=1, max_length=128)
Prompt = str | Annotated[list[str], MANY] | TokenIds | Annotated[list[TokenIds], MANY]


class CompletionRequest(SamplingFields):
    """A request to go on from a text, or from each of several.

    In text, control strings such as ``<|im_start|>`` are control tokens: whoever sends a bare prompt
    writes the template too. There is no echo, no suffix, and no choosing among more replies than asked for.
    """

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: OnlyFalse | None = None
    suffix: None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
