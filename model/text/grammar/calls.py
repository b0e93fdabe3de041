"""Grammars of tool calls in the family's XML form, from the tools' schemas.

The values' types, enumerations, and which parameters must be there are enforced; a string's own
constraints (length, pattern, format) are not, because strings stand raw in the XML. A parameter's value
that may be a string is any text up to its closing tag. Parameters come in the schema's order. What
llguidance cannot enforce of a parameter's schema is refused for tools that ask to be ``strict``; for
others the parameter's type is enforced instead.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from model.errors import InputError
from model.text.grammar.rules import GAP, checked, json_rule, json_schema
from model.text.schema import kinds_of
from model.text.values import CALL, END_CALL, END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER

END_VALUE = f"\n{END_PARAMETER}\n"


def call_grammar(
    tools: Sequence[Mapping[str, Any]],
    controls: Collection[str],
    *,
    parallel: bool = True,
    text_before: bool = False,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """A grammar of calls of ``tools``.

    Args:
        tools: the definitions that may be called; at least one.
        controls: the tokenizer's control strings; tags among them are single tokens.
        parallel: more than one call may be made.
        text_before: text may stand before the calls or in their place; else there must be a call, and
            nothing but calls.
        answer: the schema of JSON that may stand in the place of the calls.

    Raises:
        InputError: naming the tool, or the answer's schema, that cannot be enforced.
    """
    assert tools
    rules = [rule for index, tool in enumerate(tools) for rule in _tool_rules(index, tool, controls)]
    calls = "call" + (r' ("\n" call)*' if parallel else "")
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    lines = [f"call: {names}", *rules, f"raw[suffix={_quoted(END_VALUE)}]: /(?s:.*)/"]
    if text_before:
        text = "/(?s:.*)/" if CALL in controls else f"/(?s:.*)/ & ~/(?s:.*){CALL}(?s:.*)/"
        lines += [f"start: text ({calls})?", f"text: TEXT\nTEXT: {text}"]
    elif answer is not None:
        json_schema(answer)  # for an error of its own
        lines += [f"start: {GAP} ({calls} | answer)", f"answer: {json_rule(answer, 'response_format')}"]
    else:
        lines.append(f"start: {GAP} {calls}")
    return checked("\n".join(lines), "tools")


def _tool_rules(index: int, tool: Mapping[str, Any], controls: Collection[str]) -> Iterator[str]:
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    uses = [f"p_{index}_{number}{'' if key in required else '?'}" for number, key in enumerate(properties)]
    head = _quoted(f"\n{FUNCTION}{function['name']}>\n")
    body = " ".join([head, *uses, _quoted(f"{END_FUNCTION}\n")])
    yield f"call_{index}: {_tag(CALL, controls)} {body} {_tag(END_CALL, controls)}"
    for number, key in enumerate(properties):
        where = f"parameter {key!r} of tool {function['name']!r}"
        if set(key) & set("<>\n") or not key:
            raise InputError(f"{where} cannot be written in a call", param="tools")
        name = f"{index}_{number}"
        yield f"p_{name}: {_quoted(f'{PARAMETER}{key}>' + chr(10))} v_{name}"
        yield from _value_rules(name, parameters, key, where, is_strict=bool(function.get("strict")))


def _value_rules(
    name: str, parameters: Mapping[str, Any], key: str, where: str, *, is_strict: bool
) -> Iterator[str]:
    schema = parameters["properties"][key]
    kinds = kinds_of(schema, parameters)
    choices = _choices(schema)
    if choices is not None:
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        yield f"v_{name}: ({' | '.join(map(_quoted, texts))}) {_quoted(END_VALUE)}"
    elif "string" in kinds:
        yield f"v_{name}: raw"
    else:
        shared = {part: parameters[part] for part in ("$defs", "definitions") if part in parameters}
        yield f"v_{name}: j_{name} {_quoted(END_VALUE)}"
        yield f"j_{name}: {_json_value({**shared, **schema}, kinds, where, is_strict=is_strict)}"


def _json_value(schema: Mapping[str, Any], kinds: Collection[str], where: str, *, is_strict: bool) -> str:
    rule = json_rule(schema, "tools")
    try:
        checked(f"start: {rule}", "tools")
    except InputError as error:
        if is_strict:
            raise InputError(f"{where}: {error.message}", param="tools", code=error.code) from error
        return json_rule({"type": sorted(kinds)}, "tools")
    return rule


def _choices(schema: object) -> list[object] | None:
    """The values that the schema lists, if it does."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    enum = schema.get("enum")
    return list(enum) if isinstance(enum, list) and enum else None


def _tag(text: str, controls: Collection[str]) -> str:
    """A tag as a Lark term: a control token is written bare, in its own angle brackets."""
    return text if text in controls else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
