"""The messages and tools of a chat request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from server.http.schema import Schema

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]


class CacheMark(Schema):
    """A client's cache hint. Nothing needs to be done for it: every message start is a cache boundary."""

    type: Literal["ephemeral"]
    ttl: str | None = None


class TextPart(Schema):
    """A piece of text; the pieces of a message are joined with nothing between them."""

    type: Literal["text"]
    text: str
    cache_control: CacheMark | None = None


class RefusalPart(Schema):
    """A refusal, as another model may have written one; read as text."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Content = str | list[Part]


class SystemMessage(Schema):
    """Instructions; ``developer`` is the same as ``system``."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Schema):
    """What a person said."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class CalledFunction(Schema):
    """A call's name and its arguments, a JSON object or the text of one."""

    name: str
    arguments: str | dict[str, JsonValue] | None = None


class ToolCall(Schema):
    """A call that the assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class AssistantMessage(Schema):
    """What the model said, as its client keeps it.

    ``annotations``, ``audio`` and ``function_call`` are what OpenAI's own client echoes; they must be empty.
    """

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    prefix: bool | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Schema):
    """What a tool returned; nothing may be null or the empty string."""

    role: Literal["tool"]
    content: Content | None = None
    tool_call_id: str | None = None
    name: str | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class FunctionDefinition(Schema):
    """A function the model may call; no ``parameters`` means that it takes none."""

    name: Name
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class Tool(Schema):
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
    """The subset of the tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedToolsChoice(Schema):
    """The choice of a subset of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type")]
)
