"""Calls in the family's XML form: what is delivered, how it is typed, and what stays text."""

from __future__ import annotations

import itertools
import json
import random
import re
from functools import partial
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.text.arguments import ParameterType, parameter_type
from model.text.deltas import ContentDelta, ToolCallArguments
from model.text.reply import ReplyReader
from model.text.schemas.fitting import fits
from model.text.schemas.reading import ALL_KINDS
from model.text.toolcalls import new_call_id
from tests.fakes.chatml import tokenizer_with, tool
from tests.fakes.scripted import Joined, byte_ids, ids_of, read, xml_call

TOOLS = [
    tool("f", a={"type": "string"}, n={"type": "integer"}, o={"type": "object"}),
    tool("g"),
    {"type": "function", "function": {"name": "bare"}},
]


def calls_of(text: str, **options: Any) -> list[list[str]]:
    whole, _ = read(ids_of(text), tools=TOOLS, **options)
    torn, _ = read(byte_ids(text), tools=TOOLS, **options)
    assert torn == whole
    return whole.calls


def test_c05_calls_without_parameters_have_an_empty_object() -> None:
    assert calls_of(f"{xml_call('g')}\n{xml_call('bare')}") == [["g", "{}"], ["bare", "{}"]]


def test_c05_whatever_is_delivered_streams_to_the_whole() -> None:
    text = xml_call("f", a='say "hi"\n\ttwice', n="3", o='{"k": [1, "}"]}')
    ((name, arguments),) = calls_of(text)
    assert name == "f"
    assert json.loads(arguments) == {"a": 'say "hi"\n\ttwice', "n": 3, "o": {"k": [1, "}"]}}


def test_c05_a_strings_text_is_told_as_it_is_written() -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=False, tools=TOOLS)
    told = ""
    for token_id in ids_of("<tool_call>\n<function=f>\n<parameter=a>\none two three"):
        told += "".join(d.json_fragment for d in reader.push(token_id) if isinstance(d, ToolCallArguments))
    assert told == '{"a": "one two three'


@pytest.mark.parametrize(
    "text",
    ["What does <tool_call> mean?", "```\n<tool_call>\n```", "<tool_call>", "</tool_call>", "<tool_call>x"],
)
def test_c06_an_unmatched_tag_is_text(text: str) -> None:
    for tools in (None, TOOLS):
        joined, reader = read(ids_of(text), tools=tools)
        assert joined == Joined(content=text)
        assert not reader.called_tools


def test_c06_without_tools_a_whole_call_is_text() -> None:
    text = xml_call("f", a="x")
    for tools in (None, []):
        assert read(ids_of(text), tools=tools)[0] == Joined(content=text)


def test_a_call_of_an_unknown_tool_is_text() -> None:
    text = f"Like so: {xml_call('example', a='x')} and then {xml_call('g')}"
    joined, _ = read(ids_of(text), tools=TOOLS)
    assert joined.calls == [["g", "{}"]]
    assert joined.content == f"Like so: {xml_call('example', a='x')} and then"


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ({"type": "string"}, "02134", "02134"),
        ({"type": "string"}, "1e5", "1e5"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "true", "true"),
        ({"type": "string"}, '{"a": "{"}', '{"a": "{"}'),
        ({"type": "string"}, "", ""),
        ({"type": "string"}, " two  spaces ", " two  spaces "),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, " -7 ", -7),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "integer"}, "2026-01-15", "2026-01-15"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "integer"}, "", ""),
        ({"type": "integer"}, "1" * 30, int("1" * 30)),
        ({"type": "number"}, "1e5", 1e5),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "null"}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", "None"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["string", "integer"]}, "null", "null"),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, '["a"]', ["a"]),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, '{"a": 1}', '{"a": 1}'),
        ({"type": "array"}, '[1, "]"]', [1, "]"]),
        ({"type": "array"}, "[1,", "[1,"),
        ({"type": "object"}, "{'a': 1}", "{'a': 1}"),
        ({"type": "object"}, '{"a": NaN}', '{"a": NaN}'),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": 7}, "7", 7),
        ({"$ref": "#/$defs/id"}, "7", 7),
        ({"$ref": "#/$defs/loop"}, "7", "7"),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, "7", 7),
        ({"type": "integer", "nullable": True}, "null", None),
        ({}, "5", "5"),
        ({}, '{"a": 1}', {"a": 1}),
    ],
)
def test_c07_values_are_typed_by_the_schema_and_kept_where_they_do_not_fit(
    schema: dict[str, Any], raw: str, value: object
) -> None:
    definition = tool("f", v=schema)
    function: Any = definition["function"]
    function["parameters"]["$defs"] = {"id": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
    joined, _ = read(ids_of(xml_call("f", v=raw)), tools=[definition])
    ((_, arguments),) = joined.calls
    found = json.loads(arguments)["v"]
    assert found == value
    assert type(found) is type(value)


def test_c07_a_parameter_the_schema_does_not_know_is_a_string() -> None:
    assert calls_of(xml_call("f", unknown="5")) == [["f", '{"unknown": "5"}']]
    assert calls_of(xml_call("bare", a="5")) == [["bare", '{"a": "5"}']]
    assert parameter_type({"additionalProperties": {"type": "integer"}}, "k").kinds == {"integer"}


@given(st.text(max_size=30), st.sets(st.sampled_from(sorted(ALL_KINDS)), max_size=3).map(frozenset))
def test_c07_a_value_is_json_whatever_the_text(raw: str, kinds: frozenset[str]) -> None:
    value = json.loads(ParameterType("k", kinds).to_json(raw))
    if isinstance(value, str):
        assert value == raw


def test_c08_two_calls_have_indices_names_and_ids_of_their_own() -> None:
    text = f"First.\n\n{xml_call('f', a='x')}\n{xml_call('f', a='x')}\n{xml_call('g')}"
    joined, reader = read(ids_of(text), tools=TOOLS)
    assert joined.content == "First."
    assert joined.calls == [["f", '{"a": "x"}'], ["f", '{"a": "x"}'], ["g", "{}"]]
    assert reader.n_calls == 3


def test_c08_ids_are_unique() -> None:
    assert len({new_call_id() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("cut", "arguments"),
    [
        ("<parameter=n>", '{"a": "x"'),
        ("</function>", '{"a": "x", "n": 12'),
        ("2\n</param", '{"a": "x", "n": 1'),
        ("x", '{"a": "'),
    ],
)
def test_c10_a_call_that_is_cut_stays_unfinished(cut: str, arguments: str) -> None:
    text = xml_call("f", a="x", n="12")
    joined, reader = read(ids_of(text[: text.index(cut)]), tools=TOOLS)
    assert joined.calls == [["f", arguments]]
    assert reader.in_call
    assert not reader.called_tools
    with pytest.raises(json.JSONDecodeError):
        json.loads(joined.calls[0][1])


def test_c10_a_call_cut_in_its_head_is_text() -> None:
    head = "<tool_call>\n<function=f>"
    for text in (
        "<tool_call>",
        "<tool_call>\n<function=",
        "<tool_call>\n<function=f",
        head,
        f"{head}\n<para",
        f"{head}\n<parameter=a",
    ):
        joined, reader = read(ids_of(text), tools=TOOLS)
        assert joined == Joined(content=text)
        assert not reader.in_call


def test_c10_a_call_is_whole_once_its_function_is_closed() -> None:
    text = xml_call("f", a="x").removesuffix("\n</tool_call>")
    joined, reader = read(ids_of(text), tools=TOOLS)
    assert joined.calls == [["f", '{"a": "x"}']]
    assert reader.called_tools
    assert not reader.in_call


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<tool_call><function=f><parameter=a>x</parameter></function></tool_call>", {"a": "x"}),
        ("<tool_call>\n<function=f>\n<parameter=a>\nx\n</function>\n</tool_call>", {"a": "x"}),
        ("<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</tool_call>", {"a": "x"}),
        ("<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>", {"a": "x"}),
        ("<function=f>\n<parameter=a>\nx\n</parameter>\n</function>", {"a": "x"}),
        ("<function=g>\n</function>", {}),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</parameter>\n</function>\n</tool_call>",
            {"a": "x"},
        ),
        (
            "<tool_call>\n\n<function= f >\n\n<parameter= a >\n\nx\n\n</parameter>\n</function></tool_call>",
            {"a": "\nx\n"},
        ),
    ],
)
def test_sloppy_calls_are_read_when_their_meaning_is_plain(text: str, arguments: dict[str, str]) -> None:
    joined, _ = read(ids_of(text), tools=TOOLS)
    assert not joined.content
    assert calls_of(text) == joined.calls
    ((_, found),) = joined.calls
    assert json.loads(found) == arguments


def test_c06_a_tag_that_cannot_become_a_call_is_not_held_back() -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=False, tools=TOOLS)
    for text in ("<tool_call>", "<function=f>", "<tool_call> <function=f>"):
        told = ""
        for token_id in ids_of(f"Write {text} and"):
            told += "".join(d.text for d in reader.push(token_id) if isinstance(d, ContentDelta))
        assert told.endswith(f"{text} and")


@pytest.mark.parametrize(
    "text",
    [
        "Write <function=f> and then its parameters.",
        "<function=f>",
        "<function=f>\n<para",
        "<function=unknown>\n</function>",
        "<function=>\n</function>",
        "The tag <function= opens a function.",
    ],
)
def test_a_function_tag_alone_is_text(text: str) -> None:
    joined, _ = read(ids_of(text), tools=TOOLS)
    assert joined == Joined(content=text)
    assert read(byte_ids(text), tools=TOOLS)[0] == joined


def test_a_call_without_its_outer_tags_may_follow_text() -> None:
    text = "I will look.\n\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"
    joined, reader = read(ids_of(text), tools=TOOLS)
    assert joined == Joined(content="I will look.", calls=[["f", '{"a": "x"}']])
    assert reader.called_tools


@pytest.mark.parametrize(
    "value",
    [
        "a </parameter> in the middle",
        "a </parameter>\n in the middle",
        "<parameter=b>\nnested\n</parameter> not the end",
        "</function> x",
        "<function=g>\n</function>\n x",
        "<tool_call>",
        "\n</parameter",
    ],
)
def test_a_value_may_speak_of_the_tags(value: str) -> None:
    ((_, arguments),) = calls_of(xml_call("f", a=value))
    assert json.loads(arguments) == {"a": value}


def test_text_between_the_tags_of_a_call_goes_to_the_content() -> None:
    text = xml_call("f", a="x").replace("</parameter>", "</parameter>\n</parameter>\noops <b>")
    joined, _ = read(ids_of(text), tools=TOOLS)
    assert read(byte_ids(text), tools=TOOLS)[0] == joined
    assert joined == Joined(content="oops <b>", calls=[["f", '{"a": "x"}']])


def test_what_has_text_where_a_parameter_must_stand_is_no_call() -> None:
    text = "<tool_call>\n<function=f>\noops\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"
    assert read(ids_of(text), tools=TOOLS)[0] == Joined(content=text)


def test_space_before_calls_is_layout_and_text_behind_them_keeps_its_distance() -> None:
    joined, _ = read(ids_of(f"One.\n\n{xml_call('g')}\n\nTwo. "), tools=TOOLS)
    assert joined == Joined(content="One.\n\nTwo. ", calls=[["g", "{}"]])


def test_c04_a_call_at_the_end_of_an_open_thought_is_delivered() -> None:
    text = f"I should call it.\n\n{xml_call('f', a='x')}\n{xml_call('g')}\n"
    for ids in (ids_of(text), byte_ids(text)):
        joined, reader = read(ids, opens_thought=True, tools=TOOLS)
        calls = [["f", '{"a": "x"}'], ["g", "{}"]]
        assert joined == Joined(reasoning="I should call it.", calls=calls)
        assert reader.called_tools


@pytest.mark.parametrize(
    "text",
    [
        f"So {xml_call('f', a='x')} it is, or not",
        f"So {xml_call('f', a='x')}".removesuffix("</function>\n</tool_call>").rstrip(),
        f"So {xml_call('f', a='x')} {xml_call('unknown')}",
        f"So {xml_call('f', n='many')}",
        f"So {xml_call('f', b='no such parameter')}",
        "So <tool_call>",
    ],
)
def test_c04_any_other_call_in_an_open_thought_is_thought(text: str) -> None:
    for ids in (ids_of(text), byte_ids(text)):
        joined, reader = read(ids, opens_thought=True, tools=TOOLS)
        assert joined == Joined(reasoning=text)
        assert not reader.called_tools


def test_c04_a_call_in_a_thought_that_closes_is_thought() -> None:
    text = f"So {xml_call('f', a='x')}"
    joined, reader = read(ids_of(f"{text}\n</think>\n\nDone."), opens_thought=True, tools=TOOLS)
    assert joined == Joined(reasoning=text, content="Done.")
    assert not reader.called_tools


def test_c04_required_parameters_must_be_there() -> None:
    parameters = {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["a"]}
    assert fits(parameters, {"a": "x"})
    assert fits(parameters, {"a": "x", "n": 3})
    assert not fits(parameters, {"n": 3})
    assert not fits(parameters, {"a": "x", "n": "3"})
    assert not fits(parameters, {"a": "x", "z": 1})
    assert fits({**parameters, "additionalProperties": True}, {"a": "x", "z": "1"})


names = st.sampled_from(["path", "n", "flag", "note", "items"])
schemas = {
    "path": {"type": "string"},
    "n": {"type": "integer"},
    "flag": {"type": "boolean"},
    "note": {"type": ["string", "null"]},
    "items": {"type": "array"},
}
values = {
    # Without tokens that no text is made of, and without what ends a value on a line of its own.
    "path": st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    .map(partial(normalize, "NFC"))
    .filter(lambda text: not re.search(r"<\|\w+\|>|</parameter>", text)),
    "n": st.integers(),
    "flag": st.booleans(),
    "note": st.none() | st.sampled_from(["a note", "5", "a </parameter> b"]),
    "items": st.lists(st.integers() | st.sampled_from(["]", '"', "</parameter>"]), max_size=3),
}


@given(
    st.lists(names, unique=True).flatmap(lambda keys: st.fixed_dictionaries({k: values[k] for k in keys})),
    st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=200)
def test_a_call_written_as_the_template_writes_it_is_read_back(arguments: dict[str, Any], seed: int) -> None:
    def raw(value: object) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    text = xml_call("f", **{key: raw(value) for key, value in arguments.items()})
    rng = random.Random(seed)
    ids = byte_ids(text) if rng.random() < 0.5 else [i for part in _torn(text, rng) for i in ids_of(part)]
    joined, _ = read(ids, tools=[tool("f", **schemas)])
    ((_, found),) = joined.calls
    assert json.loads(found) == arguments


def _torn(text: str, rng: random.Random) -> list[str]:
    """The text in random pieces; normalised, as ids are encoded piece by piece."""
    cuts = sorted(rng.sample(range(len(text) + 1), k=min(5, len(text))))
    bounds = [0, *cuts, len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


HEAD = "<tool_call>\n<function=f>\n"
END = "</function>\n</tool_call>"
CITY = [tool("f", a={"type": "string"}, n={"type": "string"}), tool("g", city={"type": "string"})]


def read_both(text: str, tools: Any = CITY, **options: Any) -> tuple[Joined, ReplyReader]:
    """The reply of ``text``, the same however it is cut into tokens."""
    whole, reader = read(ids_of(text), tools=tools, **options)
    assert read(byte_ids(text), tools=tools, **options)[0] == whole
    return whole, reader


@pytest.mark.parametrize(
    "value",
    [
        "Example:\n<parameter=city>\nOslo\n</parameter>\nend",
        "Example:\n<parameter=city>\nOslo\n</parameter>\n<parameter=when>\nnow\n</parameter>\nend",
        "Example:\n<parameter=n>\n5\n</parameter>\nend",
        "Example:\n  <parameter=n>\n  5\n  </parameter>\nend",
        "Example:\n<parameter=n>\n5\n</parameter>",
        f"Example:\n{xml_call('g', city='Oslo')}\nend",
        f"Example:\n{xml_call('g', city='Oslo')}",
        xml_call("g", city="Oslo"),
        f"{xml_call('g', city='Oslo')}\n{xml_call('f', a='x', n='y')}\n",
        f"a\n{xml_call('f', a=xml_call('g', city='Oslo'))}\nb",
        "<function=g>\n<parameter=city>\nOslo\n</parameter>\n</function>\nend",
        "Write <parameter=n> in front of it, then </parameter> and </function>.",
        "A line of its own:\n<parameter=city>",
        "A line of its own:\n<tool_call>\n<function=g>",
    ],
)
def test_t1_a_value_that_quotes_markup_arrives_whole(value: str) -> None:
    joined, reader = read_both(xml_call("f", a=value, n="last"))
    ((name, arguments),) = joined.calls
    assert (name, json.loads(arguments)) == ("f", {"a": value, "n": "last"})
    assert not joined.content
    assert reader.called_tools


quotations = st.recursive(
    st.sampled_from(["text", "  x = 1", "", "a < b", "say <parameter=n> and </parameter> here", "end"]),
    lambda inner: st.builds(
        "\n".join,
        st.lists(
            inner
            | st.builds(lambda body: f"<parameter=city>\n{body}\n</parameter>", inner)
            | st.builds(lambda body: xml_call("g", city=body), inner)
            | st.builds(lambda body: xml_call("f", a=body, n="1"), inner),
            min_size=1,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@given(quotations, quotations, st.booleans())
@settings(max_examples=200, deadline=None)
def test_t1_whatever_is_quoted_in_balance_comes_back(one: str, other: str, torn: bool) -> None:
    text = xml_call("f", a=one, n=other) + "\n" + xml_call("g", city="y")
    joined, _ = read(byte_ids(text) if torn else ids_of(text), tools=CITY)
    assert [name for name, _ in joined.calls] == ["f", "g"]
    assert json.loads(joined.calls[0][1]) == {"a": one, "n": other}
    assert not joined.content


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"{HEAD}<parameter=a>\nx\n<parameter=n>\n5\n</parameter>\n{END}", [["f", {"a": "x", "n": "5"}]]),
        (f"{HEAD}<parameter=a>\nx\n<parameter=n>\n5\n{END}", [["f", {"a": "x", "n": "5"}]]),
        (
            f"{HEAD}<parameter=a>\nx\n</parameter>\n{xml_call('g', city='y')}",
            [["f", {"a": "x"}], ["g", {"city": "y"}]],
        ),
        (
            f"{HEAD}<parameter=a>\nx\n</parameter>\n<function=g>\n{END}",
            [["f", {"a": "x"}], ["g", {}]],
        ),
        (
            f"{HEAD}<parameter=a>\nx\n</parameter>\n</function>\n<parameter=n>\n4\n</parameter>\n{END}",
            [["f", {"a": "x", "n": "4"}]],
        ),
        (f"{HEAD}<parameter=a>\nx\n</parameter>\n<parameter=a>\nx\n</parameter>\n{END}", [["f", {"a": "x"}]]),
    ],
)
def test_t2_a_dropped_or_doubled_tag_leaves_the_call_as_it_was_meant(text: str, calls: list[Any]) -> None:
    joined, reader = read_both(text)
    assert [[name, json.loads(arguments)] for name, arguments in joined.calls] == calls
    assert not joined.content
    assert not reader.in_call


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}<parameter=a>\nx\n</parameter>\n<parameter=a>\ny\n</parameter>\n{END}",
        f"{HEAD}<parameter=a>\nx\n</parameter>\n<parameter=n</parameter>\n{END}",
        f"{HEAD}<parameter=a>\nx\n</parameter>\n</function>\n<parameter=a>\ny\n</parameter>\n{END}",
    ],
)
def test_t2_a_call_that_cannot_be_understood_is_never_completed(text: str) -> None:
    joined, reader = read_both(text)
    assert not reader.called_tools
    for _, arguments in joined.calls:
        assert arguments == '{"a": "x"'
    assert joined.content


def test_t2_a_broken_first_parameter_makes_it_text() -> None:
    text = f"{HEAD}<parameter=a</parameter>\n{END}"
    assert read_both(text)[0] == Joined(content=text)


@pytest.mark.parametrize(
    "orphans", ["</function>", "\n</parameter>\n</function>\n</tool_call>", "\n</tool_call>"]
)
def test_t3_closing_tags_behind_a_call_are_layout(orphans: str) -> None:
    text = f"{xml_call('g', city='x')}{orphans}"
    assert read_both(text)[0] == Joined(calls=[["g", '{"city": "x"}']])
    joined, _ = read_both(f"{text}\n{xml_call('g', city='y')}{orphans}\n\nDone.")
    assert joined.content == "Done."
    assert len(joined.calls) == 2


@pytest.mark.parametrize("text", ["<tool_call>\n<function=f>\n</tool_call>", "<function=f>\n</tool_call>"])
def test_t3_a_head_and_the_end_of_the_call_are_a_call_without_arguments(text: str) -> None:
    joined, reader = read_both(text)
    assert joined == Joined(calls=[["f", "{}"]])
    assert reader.called_tools


THOUGHT_CALL = f"Hm.\n{xml_call('f', a='x')}"


@pytest.mark.parametrize("ending", ["\n</think>\n\n", "</think>", "\n</think>\n\nDone."])
def test_t4_a_call_in_a_closed_thought_is_thought(ending: str) -> None:
    joined, reader = read_both(THOUGHT_CALL + ending, opens_thought=True)
    assert joined.reasoning == THOUGHT_CALL
    assert not joined.calls
    assert not reader.called_tools


@pytest.mark.parametrize("ends", [{"is_cut": True}, {}])
@pytest.mark.parametrize("is_constrained", [True, False])
def test_t4_a_call_in_an_open_thought_counts_where_the_model_itself_ended_freely(
    ends: dict[str, bool], is_constrained: bool
) -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=True, tools=CITY, is_constrained=is_constrained)
    joined = Joined()
    joined.add(reader.push_all(ids_of(THOUGHT_CALL)))
    joined.add(reader.finish(**ends))
    is_free = not ends and not is_constrained
    assert reader.called_tools == is_free
    assert joined.reasoning == ("Hm." if is_free else THOUGHT_CALL)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": ["red", "blue"]}, "green"),
        ({"type": "string", "pattern": "^r"}, "green"),
        ({"type": "integer", "maximum": 3}, "4"),
        ({"type": "array", "items": {"type": "string"}}, "[1]"),
        ({"type": "object", "required": ["k"]}, "{}"),
        ({"allOf": [{"type": "string"}, {"minLength": 9}]}, "green"),
    ],
)
def test_t4_a_call_in_a_thought_must_fit_the_whole_schema(schema: dict[str, Any], value: str) -> None:
    text = f"Hm.\n{xml_call('paint', c=value)}"
    joined, reader = read_both(text, [tool("paint", c=schema)], opens_thought=True)
    assert joined == Joined(reasoning=text)
    assert not reader.called_tools


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {},
        {"description": "untyped"},
        {"$ref": "#/$defs/text"},
        {"type": ["string", "integer", "boolean"]},
    ],
)
def test_t9_arguments_stream_wherever_text_can_only_be_a_string(schema: dict[str, Any]) -> None:
    definition = tool("f", v=schema)
    definition["function"]["parameters"]["$defs"] = {
        "text": {"anyOf": [{"type": "string"}, {"type": "null"}]}
    }  # type: ignore[index]
    reader = ReplyReader(tokenizer_with(), opens_thought=False, tools=[definition])
    told = [reader.push(i) for i in ids_of(xml_call("f", v="nullify " + "one two three four " * 50))]
    assert sum(1 for deltas in told if any(isinstance(d, ToolCallArguments) for d in deltas)) > 100


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ({"enum": ["r", "w", 1]}, "1", 1),
        ({"enum": ["r", "1", 1]}, "1", "1"),
        ({"enum": ["r", None, True, 2.5]}, "true", True),
        ({"enum": ["r", None, True, 2.5]}, "2.5", 2.5),
        ({"anyOf": [{"enum": ["auto"]}, {"type": "integer"}]}, "7", 7),
        ({"anyOf": [{"enum": ["auto"]}, {"type": "integer"}]}, "auto", "auto"),
        ({"oneOf": [{"const": "null"}, {"const": 3}]}, "3", 3),
        ({"type": ["string", "integer"], "pattern": "^[a-z]+$"}, "5", 5),
        ({"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "integer"}]}, "5", 5),
    ],
)
def test_t10_of_several_readings_the_one_that_fits_is_taken(schema: Any, raw: str, value: object) -> None:
    joined, _ = read_both(xml_call("f", v=raw), [tool("f", v=schema)])
    found = json.loads(joined.calls[0][1])["v"]
    assert found == value
    assert type(found) is type(value)
