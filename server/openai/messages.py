"""The messages and tools of a chat request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from server.http.schema import PARTS, TOOLS, Schema, Several, Untouched

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]


class Marked(Schema):
    """A part that may carry a client's cache hint, which has no effect: every message start is a boundary."""

    cache_control: Untouched = None
    prompt_cache_breakpoint: Untouched = None


class TextPart(Marked):
    """A piece of text; the pieces of a message are joined without a separator."""

    type: Literal["text"]
    text: str
    annotations: Untouched = None


class RefusalPart(Marked):
    """A refusal that another model may have written; read as text."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Content = str | Annotated[Several[Part], PARTS]


class Kept(Marked):
    """A message, with the fields that clients store with it."""

    id: Untouched = None
    provider_specific_fields: Untouched = None


class SystemMessage(Kept):
    """Instructions; ``developer`` is the same as ``system``."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Kept):
    """A message of the user."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class CalledFunction(Schema):
    """A call's name and its arguments, a JSON object or the text of one."""

    name: str
    arguments: str | dict[str, JsonValue] | None = None


class ToolCall(Schema):
    """A tool call that the assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    cache_control: Untouched = None
    provider_specific_fields: Untouched = None
    extra_content: Untouched = None


class AssistantMessage(Kept):
    """A message of the assistant, as its client stores it. The thought is read from ``reasoning_content`` or
    ``reasoning``; the fields in which clients of other providers store it too are ignored."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[Several[ToolCall], TOOLS] | None = None
    prefix: bool | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: Untouched = None
    reasoning_details: Untouched = None
    thinking_blocks: Untouched = None


class ToolMessage(Kept):
    """The result of a tool; an empty result is null or the empty string."""

    role: Literal["tool"]
    content: Content | None = None
    tool_call_id: str | None = None
    name: str | None = None
    is_error: Untouched = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class FunctionDefinition(Schema):
    """A function that the model may call; without ``parameters`` it takes none."""

    name: Name
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class Tool(Marked):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Schema):
    """The name of one function."""

    name: str


class NamedTool(Schema):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Schema):
    """The tools that may be called, and whether one of them must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[Several[NamedTool], Field(min_length=1, max_length=1024)]


class AllowedToolsChoice(Schema):
    """A tool choice that allows some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type")]
)
