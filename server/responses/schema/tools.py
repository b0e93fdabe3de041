"""The tools of a request, and which of them must or may be called, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, Tag

from server.http.schema import TOOLS, OnlyFalse, Schema, Several

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
HOSTED = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Tools that OpenAI runs itself, or whose calls have forms of their own; none of them is here."""


class FunctionTool(Schema):
    """A function the model may call; no ``parameters`` means that it takes none.

    ``defer_loading``, ``output_schema`` and ``allowed_callers`` change nothing: every tool is shown at once,
    and nobody but the model calls.
    """

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    output_schema: JsonValue = None
    allowed_callers: list[str] | None = None
    async_: OnlyFalse | None = Field(default=None, alias="async")


class TextInput(Schema):
    """Any text, the default."""

    type: Literal["text"]


class GrammarInput(Schema):
    """Text that a grammar allows."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Schema):
    """A tool that takes one text in place of arguments."""

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    async_: OnlyFalse | None = Field(default=None, alias="async")


class NamespaceTool(Schema):
    """Tools under a common name, which comes back with their calls."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: Annotated[Several[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]], TOOLS]


class ToolSearchTool(Schema):
    """A search for further tools, which the client does."""

    type: Literal["tool_search"]
    execution: Literal["client"]
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None


class WebSearchTool(Schema):
    """OpenAI's own search, which is not here: taken only where it may not reach the web."""

    type: Literal["web_search", "web_search_2025_08_26"]
    external_web_access: Literal[False]
    filters: JsonValue = None
    search_context_size: JsonValue = None
    search_content_types: JsonValue = None
    user_location: JsonValue = None


def refuse_hosted(value: Any) -> Any:
    """Name a hosted tool that is asked for, where a union would list all of its branches."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in HOSTED:
        raise ValueError(f"this server has no hosted tools, and so no {kind}")
    if (
        isinstance(kind, str)
        and kind.startswith("web_search")
        and value.get("external_web_access") is not False
    ):
        raise ValueError(
            f"this server cannot search the web; {kind} is taken with external_web_access false alone "
            '(codex: web_search = "disabled")'
        )
    return value


def _kind_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return None
    return "web_search" if kind.startswith("web_search") else kind


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[ToolSearchTool, Tag("tool_search")]
    | Annotated[WebSearchTool, Tag("web_search")],
    Discriminator(
        _kind_of,
        custom_error_type="tool_type",
        custom_error_message="the type of a tool is function, custom, namespace, tool_search or web_search",
    ),
    BeforeValidator(refuse_hosted),
]


class NamedTool(Schema):
    """One tool, by its kind and its name."""

    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class AllowedTools(Schema):
    """A subset of the tools that may be called, and whether one must be."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


def _kind_of_choice(value: Any) -> str | None:
    if isinstance(value, str):
        return "word"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return None
    return "named" if kind in ("function", "custom") else kind


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedTool, Tag("named")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(
        _kind_of_choice,
        custom_error_type="tool_choice_type",
        custom_error_message="it is none, auto, required, a function, a custom tool or allowed_tools",
    ),
    BeforeValidator(refuse_hosted),
]
