"""Which tools a turn shows to the model, which it lets it call, and what shape the reply must have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.errors import InputError
from model.text.grammar.calls import call_grammar
from model.text.grammar.rules import json_schema
from server.turn.turn import ToolChoice, Turn


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What becomes of a turn's tools and its response format.

    Attributes:
        tools: definitions in the prompt; None for none.
        readable: those whose calls are read from the reply; None for none.
        grammar: what the reply must match behind its thought; None for anything.
    """

    tools: list[dict[str, Any]] | None = None
    readable: list[dict[str, Any]] | None = None
    grammar: str | None = None


def tool_use_of(turn: Turn, controls: Collection[str]) -> ToolUse:
    """Read ``tools``, ``tool_choice`` and ``response_format`` together.

    Args:
        controls: the tokenizer's control strings.

    Raises:
        InputError: a tool is chosen that is not there, or a schema cannot be enforced.
    """
    choice = turn.tool_choice
    answer = None if turn.response_format is None else turn.response_format.schema
    by_name = _by_name(turn)
    if choice.mode == "none":
        return ToolUse(grammar=None if answer is None else json_schema(answer))
    shown, known = [dict(tool) for tool in turn.tools], list(by_name.values())
    callable_tools = _callable(choice, by_name)
    must_call = choice.mode == "required"
    if must_call and not callable_tools:
        raise InputError("'tool_choice' asks for a call, but there are no tools.", param="tool_choice")
    if not callable_tools:
        return ToolUse(shown or None, grammar=None if answer is None else json_schema(answer))
    is_free = choice.parallel and callable_tools == known and not _has_strict(known) and answer is None
    if is_free and not must_call:
        return ToolUse(shown or None, known)
    grammar = call_grammar(
        callable_tools,
        controls,
        parallel=choice.parallel,
        text_before=not must_call and answer is None,
        answer=None if must_call else answer,
    )
    return ToolUse(shown or None, callable_tools, grammar)


def _by_name(turn: Turn) -> Mapping[str, dict[str, Any]]:
    """All tools that there are, those of the prompt's head first."""
    by_name: dict[str, dict[str, Any]] = {}
    for field in ("tools", "late_tools"):
        for i, tool in enumerate(getattr(turn, field)):
            name = tool["function"]["name"]
            if name in by_name:
                raise InputError(f"Two tools are named '{name}'.", param=f"{field}[{i}].function.name")
            by_name[name] = dict(tool)
    return by_name


def _callable(choice: ToolChoice, by_name: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that may be called."""
    if choice.names is None:
        return list(by_name.values())
    for i, name in enumerate(choice.names):
        if name not in by_name:
            where = f"tool_choice.names[{i}]"
            raise InputError(f"'{where}' names '{name}', which is none of the tools.", param=where)
    return [by_name[name] for name in dict.fromkeys(choice.names)]


def _has_strict(tools: Sequence[Mapping[str, Any]]) -> bool:
    return any(tool["function"].get("strict") for tool in tools)
