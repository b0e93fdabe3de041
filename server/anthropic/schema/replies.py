"""The bodies and stream events of replies."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from server.turn.reply import PlanBody

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class OutputDetails(TypedDict):
    """Of the reply's tokens, those of the thought."""

    thinking_tokens: int


class Usage(TypedDict):
    """The first three counts add up to the tokens of the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[OutputDetails]


class TextBody(TypedDict):
    """A piece of the answer."""

    type: Literal["text"]
    text: str


class ThinkingBody(TypedDict):
    """The thought; its text is empty where the client does not want to see it."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBody(TypedDict):
    """A call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ContentBody = TextBody | ThinkingBody | ToolUseBody


class MessageBody(TypedDict):
    """A whole reply, or the beginning of a streamed one."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBody]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    crossturn: PlanBody


class MessageStart(TypedDict):
    """The first event of a stream."""

    type: Literal["message_start"]
    message: MessageBody
    crossturn: PlanBody


class BlockStart(TypedDict):
    """A content block begins."""

    type: Literal["content_block_start"]
    index: int
    content_block: ContentBody


class TextDelta(TypedDict):
    """More of a text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    """More of a thought."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    """The signature of a thought, at its end."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    """More of the JSON of a call's arguments."""

    type: Literal["input_json_delta"]
    partial_json: str


BlockGrowth = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(TypedDict):
    """An addition to the open content block."""

    type: Literal["content_block_delta"]
    index: int
    delta: BlockGrowth


class BlockStop(TypedDict):
    """The content block ends; only then may the next one begin."""

    type: Literal["content_block_stop"]
    index: int


class Ending(TypedDict):
    """Why a reply ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    """The end of the reply, with its final counts."""

    type: Literal["message_delta"]
    delta: Ending
    usage: Usage
    crossturn: PlanBody


class MessageStop(TypedDict):
    """The last event of a stream."""

    type: Literal["message_stop"]


class Ping(TypedDict):
    """Keeps the connection alive."""

    type: Literal["ping"]


class CountBody(TypedDict):
    """The number of tokens of a prompt."""

    input_tokens: int


BlockEvent = BlockStart | BlockDelta | BlockStop
StreamEvent = MessageStart | BlockEvent | MessageDelta | MessageStop | Ping
