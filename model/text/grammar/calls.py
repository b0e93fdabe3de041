"""Grammars of tool calls in the family's XML form, from the tools' schemas.

The values' types, enumerations, and which parameters must be there are enforced; of a string's own
constraints its length and pattern are, where they stand alone, because strings stand raw in the XML. A
parameter's value that may be a string is otherwise any text up to its closing tag. Parameters come in the
schema's order. What cannot be enforced of a parameter's schema is refused for tools that ask to be
``strict``; for others the parameter's type is enforced instead.

A tool may take free text in a form of its own, see :class:`TextForm`: one parameter, ``input``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from model.errors import InputError
from model.text.grammar.rules import GAP, checked, json_rule, refusal
from model.text.schemas.checking import checked_schema
from model.text.schemas.reading import Members, kinds_of, members, resolved
from model.text.values import CALL, END_CALL, END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER

END_VALUE = f"\n{END_PARAMETER}\n"
INPUT = "input"
"""The one parameter of a tool that takes free text."""


@dataclass(frozen=True, slots=True)
class TextForm:
    """What the free text of a tool must look like.

    Attributes:
        syntax: of the definition: a Lark grammar with a rule ``start``, or a regular expression.
    """

    syntax: Literal["lark", "regex"]
    definition: str


class CallOptions(TypedDict, total=False):
    """The options of :func:`call_grammar`, for those who pass them on."""

    parallel: bool
    text_before: bool
    answer: Mapping[str, Any] | None
    answer_is_strict: bool
    max_string_chars: int | None
    forms: Mapping[str, TextForm] | None
    places: Sequence[str] | None


def text_tool(name: str, description: str | None = None, form: TextForm | None = None) -> dict[str, Any]:
    """The definition of a tool that takes free text, as a function the model is shown.

    Args:
        form: told in the description; :func:`call_grammar` enforces it.
    """
    told = [] if form is None else [f"The input must match this {_SYNTAXES[form.syntax]}:\n{form.definition}"]
    function: dict[str, Any] = {"name": name}
    if description or told:
        function["description"] = "\n\n".join([description, *told] if description else told)
    function["parameters"] = {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {"type": "function", "function": function}


_SYNTAXES = {"lark": "Lark grammar", "regex": "regular expression"}


def call_grammar(
    tools: Sequence[Mapping[str, Any]],
    controls: Collection[str],
    *,
    parallel: bool = True,
    text_before: bool = False,
    answer: Mapping[str, Any] | None = None,
    answer_is_strict: bool = False,
    max_string_chars: int | None = None,
    forms: Mapping[str, TextForm] | None = None,
    places: Sequence[str] | None = None,
) -> str:
    """A grammar of calls of ``tools``.

    Args:
        tools: the definitions that may be called; at least one.
        controls: the tokenizer's control strings; tags among them are single tokens.
        parallel: more than one call may be made.
        text_before: text may stand before the calls or in their place; else there must be a call, and
            nothing but calls.
        answer: the schema of JSON that may stand in the place of the calls.
        answer_is_strict: all of that schema must be enforced.
        max_string_chars: length of strings in that JSON that have no limit of their own.
        forms: what the free text of the tools of these names must look like.
        places: of the tools in the request.

    Raises:
        InputError: naming the keyword, the tool, or the answer's schema, that cannot be enforced.
    """
    assert tools
    writer = _ToolWriter(controls, forms or {})
    places = places or [f"tools[{index}]" for index in range(len(tools))]
    rules = [rule for index, tool in enumerate(tools) for rule in writer.rules(index, tool, places[index])]
    calls = "call" + (r' ("\n" call)*' if parallel else "")
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    lines = [f"call: {names}", *rules, f"raw[suffix={_quoted(END_VALUE)}]: /(?s:.*)/"]
    if text_before:
        text = "/(?s:.*)/" if CALL in controls else f"/(?s:.*)/ & ~/(?s:.*){CALL}(?s:.*)/"
        lines += [f"start: text ({calls})?", f"text: TEXT\nTEXT: {text}"]
    elif answer is not None:
        where = "response_format.schema"
        rule = json_rule(answer, where, is_strict=answer_is_strict, max_string_chars=max_string_chars)
        lines += [f"start: {GAP} ({calls} | answer)", f"answer: {rule}"]
    else:
        lines.append(f"start: {GAP} {calls}")
    return checked("\n".join(lines), "tools")


class _ToolWriter:
    """Writes the rules of one tool after the other."""

    def __init__(self, controls: Collection[str], forms: Mapping[str, TextForm]) -> None:
        self._controls = controls
        self._forms = forms

    def rules(self, index: int, tool: Mapping[str, Any], where: str) -> Iterator[str]:
        function = tool.get("function", tool)
        form_place, where = f"{where}.format", f"{where}.function.parameters"
        parameters = checked_schema(function.get("parameters") or {}, where)
        known = members(parameters)
        uses = [
            f"p_{index}_{number}{'' if key in known.required else '?'}"
            for number, key in enumerate(known.properties)
        ]
        head = _quoted(f"\n{FUNCTION}{function['name']}>\n")
        body = " ".join([head, *uses, _quoted(f"{END_FUNCTION}\n")])
        yield f"call_{index}: {_tag(CALL, self._controls)} {body} {_tag(END_CALL, self._controls)}"
        form = self._forms.get(function["name"])
        for number, key in enumerate(known.properties):
            place = f"{where}.properties.{key}"
            if set(key) & set("<>\n") or not key:
                raise _invalid(f"{place}: such a name cannot be written in a call", place)
            name = f"{index}_{number}"
            yield f"p_{name}: {_quoted(f'{PARAMETER}{key}>' + chr(10))} v_{name}"
            if form is not None and key == INPUT:
                yield from _form_rules(name, form, form_place)
            else:
                is_strict = bool(function.get("strict"))
                yield from _value_rules(name, parameters, known, key, place, is_strict=is_strict)


def _form_rules(name: str, form: TextForm, where: str) -> Iterator[str]:
    """Free text in a form of its own.

    Raises:
        InputError: llguidance does not take the definition.
    """
    value = f"%lark {{\n{form.definition}\n}}"
    if form.syntax == "regex":
        value = f"/{_slashed(form.definition)}/"
    reason = refusal(form.definition) if form.syntax == "lark" else None
    reason = reason or refusal(f"start: v\nv: {value}\n")
    if reason is not None:
        raise _invalid(f"{where}.definition cannot be enforced: {reason}", f"{where}.definition")
    if form.syntax == "regex":
        yield from _until_closed(name, value)
    else:
        yield f"v_{name}: t_{name} {_quoted(END_VALUE)}"
        yield f"t_{name}: {value}"


def _until_closed(name: str, terms: str) -> Iterator[str]:
    """Text that matches ``terms`` and ends with the first closing tag."""
    yield f"v_{name}[suffix={_quoted(END_VALUE)}]: V_{name}"
    yield f"V_{name}: {terms}"


def _value_rules(
    name: str, parameters: Mapping[str, Any], known: Members, key: str, where: str, *, is_strict: bool
) -> Iterator[str]:
    schema = known.properties[key]
    kinds = kinds_of(schema, parameters)
    choices = _choices(schema, parameters)
    if choices is not None:
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        yield f"v_{name}: ({' | '.join(map(_quoted, texts))}) {_quoted(END_VALUE)}"
    elif "string" in kinds:
        yield from _text_rules(name, schema, kinds, where, is_strict=is_strict)
    else:
        yield f"v_{name}: j_{name} {_quoted(END_VALUE)}"
        yield f"j_{name}: {_json_value(schema, parameters, kinds, where, is_strict=is_strict)}"


def _text_rules(
    name: str, schema: object, kinds: Collection[str], where: str, *, is_strict: bool
) -> Iterator[str]:
    """A raw string, of a length and a pattern where it has them."""
    said = schema if isinstance(schema, Mapping) else {}
    limits = {key for key in ("pattern", "minLength", "maxLength") if key in said}
    terms = _terms(said) if limits and set(kinds) == {"string"} else None
    if terms is not None and refusal(f"start: V\nV: {terms}\n") is None:
        yield from _until_closed(name, terms)
        return
    if limits and is_strict:
        lost = f"{where}.{min(limits)}"
        raise _invalid(f"{lost} cannot be enforced, and the tool is strict", lost)
    yield f"v_{name}: raw"


def _terms(said: Mapping[str, Any]) -> str | None:
    """What ``minLength``, ``maxLength`` and ``pattern`` allow, as Lark's terminals."""
    terms = [f"/(?s:.{{{said.get('minLength', 0)},{said.get('maxLength', '')}}})/"]
    pattern = said.get("pattern")
    if pattern is None:
        return terms[0]
    starts, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[int(starts) : len(pattern) - int(ends)]
    if re.search(r"(?<!\\)(?<!\[)\^|(?<!\\)\$", inner) or ("|" in inner and (starts or ends)):
        return None  # anchors that hold for a part of it
    before, behind = "" if starts else "(?s:.*)", "" if ends else "(?s:.*)"
    return f"{terms[0]} & /{before}({_slashed(inner)}){behind}/"


def _json_value(
    schema: object, parameters: Mapping[str, Any], kinds: Collection[str], where: str, *, is_strict: bool
) -> str:
    try:
        return json_rule(schema, where, root=parameters, is_strict=is_strict)
    except InputError:
        if is_strict:
            raise
        return json_rule({"type": sorted(kinds)}, where)


def _choices(schema: object, root: object) -> list[object] | None:
    """The values that the schema lists, if it does."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return None
        if "const" in schema:
            return [schema["const"]]
        enum = schema.get("enum")
        if isinstance(enum, list) and enum:
            return list(enum)
        schema = resolved(schema.get("$ref"), root)
    return None


MAX_REFERENCES = 8


def _tag(text: str, controls: Collection[str]) -> str:
    """A tag as a Lark term: a control token is written bare, in its own angle brackets."""
    return text if text in controls else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _slashed(pattern: str) -> str:
    """``pattern`` between slashes: those in it are escaped, and line ends are written as such."""
    return re.sub(r"(?<!\\)/", r"\\/", pattern).replace("\n", "\\n")


def _invalid(message: str, where: str) -> InputError:
    return InputError(message, param=where, code="invalid_schema")
