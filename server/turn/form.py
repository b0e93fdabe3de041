"""The form of a reply: the tools that it may call, the grammar that it must match, and the note in the
prompt.

A model that is held to a schema without seeing it learns of a field only when it has to fill it, and fills it
with whatever comes to mind. So a note after the last message shows the schema. In that place it leaves the
conversation before it unchanged, and only the last reply is prefilled again because of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.errors import InputError
from model.text.schemas.checking import checked_schema
from server.turn.served import GrammarWriter
from server.turn.turn import ResponseFormat, ToolChoice, Turn

MAX_STRING_CHARS = 32_768
"""The longest string in JSON if neither its schema nor the reply has a limit: a model that gets lost in a
string would write to the end of the context."""

TELLING = frozenset(
    {"properties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}
)
"""A schema without any of these keywords says no more than a type."""

MAX_SCHEMA_CHARS = 32_768
"""Longer schemas are not shown: they would make up most of the prompt."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a turn's tools are used.

    Attributes:
        tools: definitions in the prompt; None for none.
        callable: those that may be called; their calls are parsed from the reply.
        must_call: whether the reply must consist of calls.
        is_free: whether the model may call any tool, or none, without constraints.
    """

    tools: list[dict[str, Any]] | None = None
    callable: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    is_free: bool = True


def tool_use_of(turn: Turn) -> ToolUse:
    """How ``turn`` uses its tools, by its ``tools`` and its ``tool_choice``.

    Raises:
        InputError: it chooses a tool that does not exist.
    """
    choice = turn.tool_choice
    by_name = _by_name(turn)
    if choice.mode == "none":
        return ToolUse()
    callable_tools = _callable(choice, by_name)
    must_call = choice.mode == "required"
    if must_call and not callable_tools:
        raise InputError("'tool_choice' asks for a call, but there are no tools.", param="tool_choice")
    is_all = len(callable_tools) == len(by_name)
    is_loose = choice.parallel and not any(_is_bound(tool, turn) for tool in callable_tools)
    shown = [dict(tool) for tool in turn.tools]
    return ToolUse(shown or None, tuple(callable_tools), must_call, is_all and is_loose and not must_call)


def has_form(turn: Turn, use: ToolUse) -> bool:
    """Whether the reply must match a grammar after its thought."""
    return turn.response_format is not None or not (use.is_free or not use.callable)


def grammar_of(turn: Turn, use: ToolUse, grammars: GrammarWriter) -> str | None:
    """The grammar that the reply must match after its thought; None for no constraint.

    Raises:
        InputError: a schema cannot be enforced although it must be.
    """
    if not has_form(turn, use):
        return None
    wanted = turn.response_format
    answer = None if wanted is None or use.must_call else wanted.schema
    is_strict = wanted is not None and bool(wanted.strict)
    max_string_chars = MAX_STRING_CHARS if turn.max_tokens is None else None
    if not use.callable and answer is not None:
        return grammars.json(answer, is_strict=is_strict, max_string_chars=max_string_chars)
    return grammars.calls(
        use.callable,
        parallel=turn.tool_choice.parallel,
        text_before=not use.must_call and answer is None,
        answer=answer,
        answer_is_strict=is_strict,
        max_string_chars=max_string_chars,
        forms=turn.forms,
        places=[_place(turn, tool) for tool in use.callable],
    )


def schema_note(wanted: ResponseFormat | None, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The note for an answer of the form ``wanted``; None if there is nothing to say, or if ``messages``
    already contain it."""
    if wanted is None or not TELLING & set(wanted.schema):
        return None
    schema = json.dumps(wanted.schema, ensure_ascii=False)
    told = _bare(schema)
    if len(told) > MAX_SCHEMA_CHARS or any(told in _bare(text) for text in _texts(messages)):
        return None
    purpose = f" ({wanted.description})" if wanted.description else ""
    return f"Answer with JSON{purpose} that fits this JSON schema, and with nothing else:\n{schema}"


def _by_name(turn: Turn) -> Mapping[str, dict[str, Any]]:
    """All tools, those at the head of the prompt first."""
    by_name: dict[str, dict[str, Any]] = {}
    for field in ("tools", "late_tools"):
        for i, tool in enumerate(getattr(turn, field)):
            name, parameters = tool["function"]["name"], tool["function"].get("parameters")
            if parameters is not None:
                checked_schema(parameters, f"{field}[{i}].function.parameters")
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


def _is_bound(tool: Mapping[str, Any], turn: Turn) -> bool:
    """Whether the arguments of ``tool`` are constrained, too."""
    return bool(tool["function"].get("strict")) or tool["function"]["name"] in turn.forms


def _place(turn: Turn, tool: Mapping[str, Any]) -> str:
    """Where in the turn ``tool`` is defined."""
    name = tool["function"]["name"]
    for field in ("tools", "late_tools"):
        definitions: Sequence[Mapping[str, Any]] = getattr(turn, field)
        for i, definition in enumerate(definitions):
            if definition["function"]["name"] == name:
                return f"{field}[{i}]"
    raise AssertionError(f"{name} is none of the turn's tools")


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, Sequence):
            yield "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _bare(text: str) -> str:
    """``text`` without white space, so that the indentation of JSON does not matter."""
    return "".join(text.split())
