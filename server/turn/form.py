"""The form of a reply: the tools that it may call, the grammar that it must match, and what the prompt says
of both.

A schema that is enforced and not shown makes a model write what it can, not what is wanted: it learns of a
field only when it has to fill it. So a note behind the last message shows the schema. There it leaves the
conversation before it as it is, and nothing but the last reply is prefilled again for it.
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
"""Length of a string in JSON that has no limit of its own, where the reply has none either: a model that is
lost in a string would write to the end of the context."""

TELLING = frozenset(
    {"properties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}
)
"""Keywords without one of which a schema says no more than a type."""

MAX_SCHEMA_CHARS = 32_768
"""Longer schemas are not shown: they would be most of the prompt."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What becomes of a turn's tools.

    Attributes:
        tools: definitions in the prompt; None for none.
        callable: those that may be called; their calls are read from the reply.
        must_call: nothing but calls may be written.
        is_free: the model may call all that there is, or none of it, as it likes.
    """

    tools: list[dict[str, Any]] | None = None
    callable: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    is_free: bool = True


def tool_use_of(turn: Turn) -> ToolUse:
    """Read ``tools`` and ``tool_choice`` together.

    Raises:
        InputError: a tool is chosen that is not there.
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
    """Whether the reply behind its thought must match a grammar."""
    return turn.response_format is not None or not (use.is_free or not use.callable)


def grammar_of(turn: Turn, use: ToolUse, grammars: GrammarWriter) -> str | None:
    """What the reply must match behind its thought; None for anything.

    Raises:
        InputError: a schema that must be enforced cannot be.
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
    """The note for an answer of the form ``wanted``; None where there is nothing to tell, or where
    ``messages`` tell it already."""
    if wanted is None or not TELLING & set(wanted.schema):
        return None
    schema = json.dumps(wanted.schema, ensure_ascii=False)
    told = _bare(schema)
    if len(told) > MAX_SCHEMA_CHARS or any(told in _bare(text) for text in _texts(messages)):
        return None
    purpose = f" ({wanted.description})" if wanted.description else ""
    return f"Answer with JSON{purpose} that fits this JSON schema, and with nothing else:\n{schema}"


def _by_name(turn: Turn) -> Mapping[str, dict[str, Any]]:
    """All tools that there are, those of the prompt's head first."""
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
    """Whether calls of ``tool`` must keep to more than the form of a call."""
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
    """``text`` without white space, however JSON was indented in it."""
    return "".join(text.split())
