"""Which tools a turn shows to the model, which it lets it call, and what shape the reply must have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.errors import InputError
from model.text.grammar import call_grammar, json_schema
from server.turn.turn import ToolChoice, ToolDefinition, Turn


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What becomes of a turn's tools and its response format.

    Attributes:
        tools: definitions in the prompt, whose calls are read from the reply; None for neither.
        grammar: what the reply must match behind its thought; None for anything.
    """

    tools: list[dict[str, Any]] | None = None
    grammar: str | None = None


def tool_use_of(turn: Turn, controls: Collection[str]) -> ToolUse:
    """Read ``tools``, ``tool_choice`` and ``response_format`` together.

    Args:
        controls: the tokenizer's control strings.

    Raises:
        InputError: a tool is chosen that is not there, or a schema cannot be enforced.
    """
    by_name = _by_name(turn.tools)
    choice = turn.tool_choice
    tools = [] if choice.mode == "none" else [dict(tool) for tool in turn.tools]
    answer = None if turn.response_format is None else turn.response_format.schema
    callable_tools = _callable(choice, tools, by_name)
    if not tools:
        return ToolUse(None, None if answer is None else json_schema(answer))
    must_call = choice.mode == "required"
    is_free = choice.parallel and callable_tools == tools and not _has_strict(tools) and answer is None
    if is_free and not must_call:
        return ToolUse(tools)
    grammar = call_grammar(
        callable_tools,
        controls,
        parallel=choice.parallel,
        text_before=not must_call and answer is None,
        answer=None if must_call else answer,
    )
    return ToolUse(tools, grammar)


def _by_name(tools: Sequence[ToolDefinition]) -> Mapping[str, ToolDefinition]:
    by_name: dict[str, ToolDefinition] = {}
    for i, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in by_name:
            raise InputError(f"Two tools are named '{name}'.", param=f"tools[{i}].function.name")
        by_name[name] = tool
    return by_name


def _callable(
    choice: ToolChoice, tools: list[dict[str, Any]], by_name: Mapping[str, ToolDefinition]
) -> list[dict[str, Any]]:
    """The tools that may be called."""
    if choice.mode == "required" and not tools and choice.names is None:
        raise InputError("'tool_choice' asks for a call, but there are no tools.", param="tool_choice")
    if choice.mode == "none" or choice.names is None:
        return tools
    for i, name in enumerate(choice.names):
        if name not in by_name:
            where = f"tool_choice.names[{i}]"
            raise InputError(f"'{where}' names '{name}', which is none of the tools.", param=where)
    return [dict(by_name[name]) for name in dict.fromkeys(choice.names)]


def _has_strict(tools: Sequence[ToolDefinition]) -> bool:
    return any(tool["function"].get("strict") for tool in tools)
