"""The items of a request's input, as clients send them: new ones, and those of earlier responses given back.

Keys that say nothing to the model (ids, statuses, annotations, who made an item) are taken wherever OpenAI or
its clients put them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, Tag

from server.http.schema import PARTS, TOOLS, OnlyFalse, Schema, Several
from server.responses.schema.tools import Tool

Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(Schema):
    """A piece of text, of either side; the pieces of a message are joined with nothing between them."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str
    annotations: JsonValue = None
    logprobs: JsonValue = None
    prompt_cache_breakpoint: JsonValue = None


class RefusalPart(Schema):
    """A refusal, as another model may have written one; read as text."""

    type: Literal["refusal"]
    refusal: str


class ImagePart(Schema):
    """A picture, in a data URL or at an address."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["low", "high", "auto", "original"] | None = None
    file_id: None = None
    prompt_cache_breakpoint: JsonValue = None


def _refuse_part(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in ("input_file", "input_audio", "computer_screenshot"):
        raise ValueError(f"parts of type {kind} are not supported")
    return value


def _kind_of_part(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return None
    return {"input_image": "image", "refusal": "refusal"}.get(kind, "text")


Part = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[RefusalPart, Tag("refusal")]
    | Annotated[ImagePart, Tag("image")],
    Discriminator(
        _kind_of_part,
        custom_error_type="part_type",
        custom_error_message="a part is an object with a type",
    ),
    BeforeValidator(_refuse_part),
]


class _Item(Schema):
    """What any item may carry besides."""

    id: str | None = None
    status: Status | None = None
    created_by: str | None = None
    internal_chat_message_metadata_passthrough: JsonValue = None


class MessageItem(_Item):
    """A message of any side; an assistant that only called tools may have said nothing."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[Several[Part], PARTS] | None
    name: str | None = None
    phase: str | None = None
    end_turn: bool | None = None


class ReasoningItem(_Item):
    """A thought: in the clear, sealed by this server, or as a summary; the first that is there counts."""

    type: Literal["reasoning"]
    summary: Annotated[Several[TextPart], PARTS] | None = None
    content: Annotated[Several[TextPart], PARTS] | None = None
    encrypted_content: str | None = None


class _Call(_Item):
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    namespace: str | None = None
    caller: JsonValue = None
    async_: OnlyFalse | None = Field(default=None, alias="async")


class FunctionCallItem(_Call):
    """A call that the model made; ``arguments`` are the text of a JSON object."""

    type: Literal["function_call"]
    arguments: str


class CustomCallItem(_Call):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    input: str


class CallOutputItem(_Item):
    """What a tool returned."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str | None = None
    output: str | Annotated[Several[Part], PARTS]
    name: str | None = None
    namespace: str | None = None
    caller: JsonValue = None


class ToolSearchCallItem(_Item):
    """A search for tools that the model asked its client for."""

    type: Literal["tool_search_call"]
    arguments: JsonValue
    call_id: str | None = None
    execution: Literal["client"] = "client"


class ToolSearchOutputItem(_Item):
    """The tools that the client found; they may be called from here on."""

    type: Literal["tool_search_output"]
    tools: Annotated[Several[Tool], TOOLS]
    call_id: str | None = None
    execution: Literal["client"] = "client"


class AdditionalToolsItem(_Item):
    """Tools that stand among the input; they are tools of the request like the others."""

    type: Literal["additional_tools"]
    role: Literal["developer"]
    tools: Annotated[Several[Tool], TOOLS]


class ItemReference(Schema):
    """An item that the server keeps, by its id."""

    type: Literal["item_reference"] | None = None
    id: str


KINDS = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
    "item_reference",
)


def _kind_of_item(value: Any) -> str | None:
    fields = value if isinstance(value, dict) else vars(value) if isinstance(value, Schema) else {}
    kind = fields.get("type")
    if kind is None:
        kind = "message" if "role" in fields else "item_reference" if "id" in fields else None
    return kind.replace("custom_tool_call_output", "function_call_output") if isinstance(kind, str) else None


def _refuse_item(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in KINDS:
        raise ValueError(f"items of type {kind!r} are not supported; this server takes {', '.join(KINDS)}")
    return value


Item = (
    MessageItem
    | ReasoningItem
    | FunctionCallItem
    | CustomCallItem
    | CallOutputItem
    | ToolSearchCallItem
    | ToolSearchOutputItem
    | AdditionalToolsItem
)
InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ToolSearchCallItem, Tag("tool_search_call")]
    | Annotated[ToolSearchOutputItem, Tag("tool_search_output")]
    | Annotated[AdditionalToolsItem, Tag("additional_tools")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(
        _kind_of_item,
        custom_error_type="item_type",
        custom_error_message="an item is an object with a type, or a message with a role",
    ),
    BeforeValidator(_refuse_item),
]
