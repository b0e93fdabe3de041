"""Which tools a request shows to the model, which it lets it call, and what shape the reply must have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.errors import InputError
from model.text.grammar import call_grammar, json_schema
from server.openai.chat_schema import ChatRequest, JsonObjectFormat, JsonSchemaFormat
from server.openai.message_schema import AllowedToolsChoice, NamedTool

ToolDefinition = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What becomes of a request's tools and its response format.

    Attributes:
        tools: definitions in the prompt, whose calls are read from the reply; None for neither.
        grammar: what the reply must match behind its thought; None for anything.
    """

    tools: list[ToolDefinition] | None = None
    grammar: str | None = None


def tool_use_of(request: ChatRequest, controls: Collection[str]) -> ToolUse:
    """Read ``tools``, ``tool_choice``, ``parallel_tool_calls`` and ``response_format`` together.

    Args:
        controls: the tokenizer's control strings.

    Raises:
        InputError: a tool is chosen that is not there, or a schema cannot be enforced.
    """
    tools = _definitions(request)
    if request.tool_choice == "none":
        tools = []  # not even shown: a model that sees tools calls them
    callable_tools, must_call = _choice(request, tools)
    answer = _answer_schema(request)
    if not tools:
        return ToolUse(None, None if answer is None else json_schema(answer))
    is_parallel = request.parallel_tool_calls is not False and not isinstance(request.tool_choice, NamedTool)
    is_free = is_parallel and callable_tools == tools and not _has_strict(tools) and answer is None
    if is_free and not must_call:
        return ToolUse(tools)
    grammar = call_grammar(
        callable_tools,
        controls,
        parallel=is_parallel,
        text_before=not must_call and answer is None,
        answer=None if must_call else answer,
    )
    return ToolUse(tools, grammar)


def _definitions(request: ChatRequest) -> list[ToolDefinition]:
    """The tools for the template: keys in the order that models are trained on, schemas as they came."""
    names: set[str] = set()
    for i, tool in enumerate(request.tools or ()):
        if tool.function.name in names:
            raise InputError(
                f"Two tools are named '{tool.function.name}'.", param=f"tools[{i}].function.name"
            )
        names.add(tool.function.name)
    return [tool.model_dump(exclude_none=True) for tool in request.tools or ()]


def _choice(request: ChatRequest, tools: Sequence[ToolDefinition]) -> tuple[list[ToolDefinition], bool]:
    """The tools that may be called, and whether one must be."""
    by_name = {tool["function"]["name"]: tool for tool in tools}
    match request.tool_choice:
        case NamedTool(function=function):
            return [_named(by_name, function.name, "tool_choice.function.name")], True
        case AllowedToolsChoice(allowed_tools=allowed):
            where = "tool_choice.allowed_tools.tools"
            chosen = {
                tool.function.name: _named(by_name, tool.function.name, f"{where}[{i}].function.name")
                for i, tool in enumerate(allowed.tools)
            }
            return list(chosen.values()), allowed.mode == "required"
        case "required":
            if not tools:
                raise InputError("'tool_choice' is 'required', but there are no tools.", param="tool_choice")
            return list(tools), True
        case _:
            return list(tools), False


def _named(by_name: Mapping[str, ToolDefinition], name: str, where: str) -> ToolDefinition:
    if name not in by_name:
        raise InputError(f"'{where}' names '{name}', which is none of the tools.", param=where)
    return by_name[name]


def _has_strict(tools: Sequence[ToolDefinition]) -> bool:
    return any(tool["function"].get("strict") for tool in tools)


def _answer_schema(request: ChatRequest) -> Mapping[str, Any] | None:
    """What the reply's content must be, unless it is calls; None for any text."""
    match request.response_format:
        case JsonSchemaFormat(json_schema=wanted) if wanted.schema_ is not None:
            return wanted.schema_
        case JsonSchemaFormat() | JsonObjectFormat():
            return {"type": "object"}
        case _:
            return None
