"""Grammars of tool calls in the family's XML form, from the tools' schemas.

The values' types, enumerations, and which parameters must be there are enforced; a string's own
constraints (length, pattern, format) are not, because strings stand raw in the XML. A parameter's value
that may be a string is any text up to its closing tag. Parameters come in the schema's order.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from model.arguments import parameter_kinds
from model.errors import InputError
from model.grammar import GAP, checked, json_rule
from model.toolcalls import CALL, END_CALL, END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER

END_VALUE = f"\n{END_PARAMETER}\n"


def call_grammar(
    tools: Sequence[Mapping[str, Any]],
    controls: Collection[str],
    *,
    parallel: bool = True,
    text_before: bool = False,
) -> str:
    """A grammar of calls of ``tools``.

    Args:
        tools: the definitions that may be called; at least one.
        controls: the tokenizer's control strings; tags among them are single tokens.
        parallel: more than one call may be made.
        text_before: text may stand before the calls or in their place; else there must be a call, and
            nothing but calls.

    Raises:
        InputError: naming the tool whose parameters cannot be enforced.
    """
    assert tools
    rules = [rule for index, tool in enumerate(tools) for rule in _tool_rules(index, tool, controls)]
    calls = "call" + (r' ("\n" call)*' if parallel else "")
    start = f"text ({calls})?" if text_before else f"{GAP} {calls}"
    text = "/(?s:.*)/" if CALL in controls else f"/(?s:.*)/ & ~/(?s:.*){CALL}(?s:.*)/"
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    lines = [f"start: {start}", f"call: {names}", *rules, f"raw[suffix={_quoted(END_VALUE)}]: /(?s:.*)/"]
    if text_before:
        lines.append(f"text: TEXT\nTEXT: {text}")
    return checked("\n".join(lines), "tools")


def _tool_rules(index: int, tool: Mapping[str, Any], controls: Collection[str]) -> Iterator[str]:
    function = tool.get("function", tool)
    where = f"tools[{index}].function.parameters"
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    uses = [f"p_{index}_{number}{'' if key in required else '?'}" for number, key in enumerate(properties)]
    head = _quoted(f"\n{FUNCTION}{function['name']}>\n")
    body = " ".join([head, *uses, _quoted(f"{END_FUNCTION}\n")])
    yield f"call_{index}: {_tag(CALL, controls)} {body} {_tag(END_CALL, controls)}"
    for number, (key, schema) in enumerate(properties.items()):
        if set(key) & set("<>\n") or not key:
            raise InputError(f"{where}: {key!r} cannot be a parameter's name", param=where)
        name = f"{index}_{number}"
        yield f"p_{name}: {_quoted(f'{PARAMETER}{key}>' + chr(10))} v_{name}"
        yield from _value_rules(name, schema, parameters, key, where)


def _value_rules(
    name: str, schema: object, parameters: Mapping[str, Any], key: str, where: str
) -> Iterator[str]:
    kinds = parameter_kinds(parameters, key)
    choices = _choices(schema)
    if choices is not None:
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        yield f"v_{name}: ({' | '.join(map(_quoted, texts))}) {_quoted(END_VALUE)}"
    elif "string" in kinds or not isinstance(schema, Mapping):
        yield f"v_{name}: raw"
    else:
        shared = {part: parameters[part] for part in ("$defs", "definitions") if part in parameters}
        yield f"v_{name}: j_{name} {_quoted(END_VALUE)}"
        yield f"j_{name}: {json_rule({**shared, **schema}, where)}"


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
