"""Tools as clients define them, and how a conversation chooses, adds and removes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from server.anthropic.schema.blocks import CacheMark
from server.http.schema import Schema

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]


def _called_directly(callers: list[str]) -> list[str]:
    if "direct" not in callers:
        raise ValueError("this server runs no code that could call tools, so 'direct' must be among them")
    return callers


class Tool(Schema):
    """A tool that the client runs. Tools that Anthropic defines, which have a ``type``, are refused.

    ``eager_input_streaming`` has no effect: arguments are always streamed as they are generated.
    """

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, JsonValue]
    strict: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[dict[str, JsonValue]] | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: Annotated[list[str], AfterValidator(_called_directly)] | None = None
    cache_control: CacheMark | None = None


class AutoChoice(Schema):
    """The model may call tools."""

    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Schema):
    """The model must call a tool."""

    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class NamedChoice(Schema):
    """The model must call this tool."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(Schema):
    """The model may not call tools, and they are not shown to it."""

    type: Literal["none"]


ToolChoice = Annotated[AutoChoice | AnyChoice | NamedChoice | NoChoice, Field(discriminator="type")]


class ToolName(Schema):
    """A tool of the request, or one that an earlier message defines."""

    type: Literal["tool_reference"]
    name: str


class ToolDefinition(Schema):
    """A tool that is defined in the message."""

    type: Literal["tool_definition"]
    definition: Tool


class ToolAdditionBlock(Schema):
    """From here on this tool may be called."""

    type: Literal["tool_addition"]
    tool: Annotated[ToolName | ToolDefinition, Field(discriminator="type")]
    cache_control: CacheMark | None = None


class ToolRemovalBlock(Schema):
    """From here on this tool may not be called."""

    type: Literal["tool_removal"]
    tool: ToolName
    cache_control: CacheMark | None = None
