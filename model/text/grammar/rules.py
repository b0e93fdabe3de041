"""Writes JSON schemas as grammars: text in llguidance's JSON form, which can cross between threads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import llguidance

from model.errors import InputError
from model.text.grammar.enforcing import enforceable
from model.text.schemas.checking import checked_schema

GAP = r"/\n{0,2}/"
"""What may stand between a thought and the content: the template writes two line feeds."""
SPACE = r"( |\n {0,64})?"
"""Between JSON's tokens: nothing, a space, or a new indented line. Without a bound a model can get lost
in white space that the grammar always allows."""
LIMITS = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "pattern",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "format",
    }
)
"""Keywords that bound a value of a type; without them the type still holds."""
MAX_REASON_CHARS = 200
PARSER_LIMITS = llguidance.LLParserLimits(max_items_in_row=16_000)
"""An object of 2,000 optional members needs four times as many items; the library's own limit is 2,000."""


def json_schema(
    schema: Mapping[str, Any],
    where: str = "response_format.schema",
    *,
    is_strict: bool = False,
    max_string_chars: int | None = None,
) -> str:
    """The grammar of the JSON texts that ``schema`` allows.

    Args:
        where: its place in the request.
        is_strict: all of it must be enforced; else what cannot be is taken for an annotation.
        max_string_chars: length of strings that have no limit of their own.

    Raises:
        InputError: the schema is invalid, no value fits it, or it is strict and a keyword cannot be
            enforced; names the keyword.
    """
    rule = json_rule(schema, where, is_strict=is_strict, max_string_chars=max_string_chars)
    return checked(f"start: {GAP} value\nvalue: {rule}\n", where)


def json_rule(
    schema: object,
    where: str,
    *,
    root: Mapping[str, Any] | None = None,
    is_strict: bool = False,
    max_string_chars: int | None = None,
) -> str:
    """``schema`` as the right side of a Lark rule, see :func:`json_schema`.

    Args:
        root: the checked schema whose definitions ``schema`` refers to; None for its own.
    """
    if root is None:
        checked_schema(schema, where)
    try:
        found = enforceable(
            schema, where, takes_pattern=takes_pattern, max_string_chars=max_string_chars, root=root
        )
    except RecursionError as error:
        raise InputError(f"{where} is nested too deeply", param=where, code="invalid_schema") from error
    if found.lost and is_strict:
        raise InputError(
            f"{found.lost[0]} cannot be enforced, and the schema is strict",
            param=found.lost[0],
            code="invalid_schema",
        )
    wanted = found.schema if isinstance(found.schema, Mapping) else {"enum": []}
    shared = {} if root is None else _definitions(root, where)
    rule = _rule({**shared, **wanted})
    reason = refusal(f"start: {rule}")
    if reason is not None and not is_strict:
        bare = _rule({**shared, **_without_limits(wanted)})
        rule, reason = (bare, None) if refusal(f"start: {bare}") is None else (rule, reason)
    if reason is not None:
        raise InputError(f"{where} cannot be enforced: {reason}", param=where, code="invalid_schema")
    return rule


def checked(lark: str, where: str) -> str:
    """A Lark grammar in the form that :class:`GrammarTable` takes.

    Raises:
        InputError: llguidance does not take it.
    """
    reason = refusal(lark)
    if reason is not None:
        raise InputError(f"{where} cannot be enforced: {reason}", param=where, code="invalid_schema")
    grammar: str = llguidance.LLMatcher.grammar_from_lark(lark)
    return grammar


def refusal(lark: str) -> str | None:
    """Why llguidance does not take a grammar, in a sentence; None if it does."""
    try:
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    except BaseException as panic:  # the library's own faults are none of ``Exception``
        if isinstance(panic, KeyboardInterrupt | SystemExit):
            raise
        return "the library that reads it fails"
    return _sentence(messages[0]) if is_error else None


@lru_cache(maxsize=1024)
def takes_pattern(pattern: str) -> bool:
    """Whether llguidance reads ``pattern``; look-around and references back it does not."""
    return refusal(f"start: {_rule({'type': 'string', 'pattern': pattern})}") is None


def _rule(schema: Mapping[str, Any]) -> str:
    options = {"whitespace_flexible": True, "whitespace_pattern": SPACE, "lenient": True}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def _definitions(root: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {
        part: {
            name: enforceable(value, f"{where}.{part}.{name}", takes_pattern=takes_pattern, root=root).schema
            for name, value in root[part].items()
        }
        for part in ("$defs", "definitions")
        if isinstance(root.get(part), Mapping)
    }


def _without_limits(schema: object) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: value if key in ("enum", "const") else _without_limits(value)
            for key, value in schema.items()
            if key not in LIMITS or isinstance(value, Mapping)
        }
    return [_without_limits(part) for part in schema] if isinstance(schema, list) else schema


def _sentence(message: str) -> str:
    """The library's reason alone: behind it stand the place and the whole grammar."""
    message = re.sub(r"^at \d+\(\d+\): ", "", message)
    message = message.removeprefix("failed to compile JSON schema: ").split("\n")[0].strip()
    return message if len(message) <= MAX_REASON_CHARS else f"{message[: MAX_REASON_CHARS - 3]}..."
