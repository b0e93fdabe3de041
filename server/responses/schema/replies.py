"""The bodies that this dialect answers with, as far as they are not the request's own fields given back."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from server.turn.reply import PlanBody

ItemBody = dict[str, Any]
"""An output item: a message, a thought, or a call."""
EventBody = dict[str, Any]
"""An event of a stream; ``type`` says which."""
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class InputDetails(TypedDict):
    """Of the prompt's tokens, those that were not read again, and those that were."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    """Of the reply's tokens, those of the thought."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFault(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(TypedDict):
    """Why a response ends early."""

    reason: Literal["max_output_tokens"]


class ResponseBody(TypedDict):
    """A response, whole or in the making."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[ItemBody]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    background: bool
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    truncation: Literal["disabled"]
    user: str | None
    usage: ResponseUsage | None
    crossturn: NotRequired[PlanBody]


class ResponseEvent(TypedDict):
    """One event of a stream; the rest depends on its type."""

    type: str
    sequence_number: int


class DeletedResponse(TypedDict):
    """What is left of a response that was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(TypedDict):
    """A page of items."""

    object: Literal["list"]
    data: list[ItemBody]
    first_id: str
    last_id: str
    has_more: bool


class InputTokens(TypedDict):
    """How long a prompt is."""

    object: Literal["response.input_tokens"]
    input_tokens: int
