"""Writes JSON schemas as grammars: text in llguidance's JSON form, which can cross between threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import llguidance

from model.errors import InputError

GAP = r"/\n{0,2}/"
"""What may stand between a thought and the content: the template writes two line feeds."""
SPACE = r"( |\n {0,64})?"
"""Between JSON's tokens: nothing, a space, or a new indented line. Without a bound a model can get lost
in white space that the grammar always allows."""


def json_schema(schema: Mapping[str, Any], where: str = "response_format.json_schema.schema") -> str:
    """The grammar of the JSON texts that ``schema`` allows.

    Raises:
        InputError: the schema is invalid or uses what cannot be enforced; ``where`` names it.
    """
    return checked(f"start: {GAP} value\nvalue: {json_rule(schema, where)}\n", where)


def json_rule(schema: Mapping[str, Any], where: str) -> str:
    """``schema`` as the right side of a Lark rule.

    Raises:
        InputError: it is nested too deeply.
    """
    options = {"whitespace_flexible": True, "whitespace_pattern": SPACE}
    try:
        return f"%json {json.dumps({**schema, 'x-guidance': options})}"
    except RecursionError as error:
        raise InputError(f"{where} is nested too deeply", param=where) from error


def checked(lark: str, where: str) -> str:
    """A Lark grammar in the form that :class:`GrammarTable` takes.

    Raises:
        InputError: llguidance does not take it.
    """
    grammar: str = llguidance.LLMatcher.grammar_from_lark(lark)
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if is_error:
        reason = " ".join(messages[0].split())
        raise InputError(f"{where} cannot be enforced: {reason}", param=where, code="invalid_schema")
    return grammar
