"""Grammars on logits: what they let through is what was asked for."""

from __future__ import annotations

import json
import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from model.errors import InputError
from model.text.grammar.calls import call_grammar
from model.text.grammar.rules import json_schema
from model.text.reply import ReplyReader, close_thought_ids
from model.text.schemas.fitting import fits
from server.engine.picking import Constraint
from tests.fakes.chatml import tokenizer_with, tool
from tests.fakes.grammars import VOCAB, controls, table, takes
from tests.fakes.scripted import ids_of, read, xml_call

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 200}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
READ = tool(
    "read",
    path={"type": "string"},
    n={"type": "integer", "minimum": 0, "maximum": 99},
    mode={"enum": ["r", "w", 3]},
    deep={"$ref": "#/$defs/flag"},
)
READ["function"]["parameters"].update(  # type: ignore[index]
    {"required": ["n", "mode"], "$defs": {"flag": {"type": "boolean"}}}
)
TOOLS = [READ, tool("stop")]


def wander(grammar: str, seed: int, n_max: int = 400) -> list[int] | None:
    """Tokens picked blindly among those allowed; None where that comes to no end."""
    rng, reading = random.Random(seed), table().start(grammar)
    ids: list[int] = []
    while len(ids) < n_max:
        allowed = np.flatnonzero(np.array(reading.mask()))
        ends = [i for i in allowed if i in tokenizer_with().eos_ids]
        if ends:
            return ids
        # Short tokens, and those that close things, or the walk stays in a string for ever.
        closing = [
            i for i in allowed if tokenizer_with().token_bytes(int(i))[:1] in (b'"', b"\n", b"<", b"}")
        ]
        ids.append(int(rng.choice(closing if closing and rng.random() < 0.7 else list(allowed))))
        assert reading.accept(ids[-1])
    return None


@pytest.mark.parametrize(
    "text",
    ['{"name": "Ada", "age": 36}', '\n\n{"name":"Ada","age":36}', '{\n  "name": "Ada",\n  "age": 36\n}'],
)
def test_d05_text_that_fits_the_schema_may_be_written(text: str) -> None:
    assert takes(json_schema(PERSON), text)
    assert takes(json_schema({"type": "object"}), text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada"}',
        '{"name": "Ada", "age": "36"}',
        '{"name": "Ada", "age": 36, "x": 1}',
        'Sure! {"name": "Ada", "age": 36}',
        '{"name": "Ada", "age": 36} there',
        '{"name": "<|im_end|>", "age": 36}',
        '{"name": "A", "age":     3}',
        "[]",
    ],
)
def test_d05_other_text_may_not(text: str) -> None:
    assert not takes(json_schema(PERSON), text)


def test_d05_whatever_is_written_is_valid() -> None:
    walks = [ids for seed in range(20) if (ids := wander(json_schema(PERSON), seed)) is not None]
    assert len(walks) > 5
    for ids in walks:
        person = json.loads(tokenizer_with().decode(ids))
        assert set(person) == {"name", "age"}
        assert isinstance(person["name"], str)
        assert isinstance(person["age"], int)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "strin"}, ".type"),
        ({"$ref": "https://example.com/schema"}, ""),
        ({"$ref": "#/nowhere"}, ".$ref"),
        ({"type": "string", "enum": []}, ""),
        ({"not": {}}, ""),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, ""),
    ],
)
def test_d05_a_schema_that_nothing_fits_is_refused(schema: dict[str, Any], keyword: str) -> None:
    with pytest.raises(InputError) as refusal:
        json_schema(schema)
    assert refusal.value.param == f"response_format.schema{keyword}"
    assert refusal.value.code == "invalid_schema"


def test_d05_a_schema_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(InputError):
        json_schema(schema)


def test_at_the_end_only_end_tokens_are_allowed() -> None:
    reading = table().start(json_schema({"const": 1}))
    assert reading.accept(ids_of("1")[0])
    assert set(np.flatnonzero(np.array(reading.mask())).tolist()) == set(tokenizer_with().eos_ids)


def test_rows_beyond_the_tokenizer_are_never_allowed() -> None:
    mask = table().start(json_schema({"type": "object"})).mask()
    assert mask.shape == (VOCAB,)
    assert not np.array(mask)[tokenizer_with().n_tokens :].any()


CALL = xml_call("read", path="a b", n="3", mode="r", deep="true")


def test_c02_a_required_call_is_all_that_may_be_written() -> None:
    grammar = call_grammar(TOOLS, controls())
    stop = xml_call("stop")
    for text in (CALL, f"\n\n{CALL}", f"{CALL}\n{stop}", xml_call("read", n="3", mode="3")):
        assert takes(grammar, text), text
    for text in ("Hello", f"Hello {CALL}", f"{CALL} bye", xml_call("other"), xml_call("read", n="3")):
        assert not takes(grammar, text), text
    assert not takes(grammar, xml_call("read", n="many", mode="r"))
    assert not takes(grammar, xml_call("read", n="100", mode="r"))


def test_c02_one_call_at_most_when_they_may_not_be_parallel() -> None:
    grammar = call_grammar(TOOLS, controls(), parallel=False)
    assert takes(grammar, CALL)
    assert not takes(grammar, f"{CALL}\n{CALL}")


def test_text_may_stand_before_calls_where_it_is_allowed() -> None:
    grammar = call_grammar(TOOLS, controls(), text_before=True)
    for text in ("Hello <b>", f"Hello.\n\n{CALL}", CALL):
        assert takes(grammar, text)
    assert not takes(grammar, f"Hello {xml_call('read', n='x', mode='r')}")


def test_c02_whatever_is_written_is_read_back_as_calls_that_fit() -> None:
    grammar = call_grammar(TOOLS, controls())
    walks = [ids for seed in range(15) if (ids := wander(grammar, seed)) is not None]
    assert len(walks) > 4
    for ids in walks:
        joined, reader = read(ids, tools=TOOLS)
        assert reader.called_tools
        assert not reader.in_call
        assert not joined.content
        for name, arguments in joined.calls:
            definition: Any = next(t for t in TOOLS if t["function"]["name"] == name)  # type: ignore[index]
            assert fits(definition["function"]["parameters"], json.loads(arguments))


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def test_a_parameter_that_cannot_be_written_is_refused_with_its_tool() -> None:
    with pytest.raises(InputError, match="cannot be written") as refusal:
        call_grammar([tool("f", **{"a>b": {"type": "string"}})], controls())
    assert refusal.value.param == "tools[0].function.parameters.properties.a>b"


def test_a_strict_tool_that_cannot_be_enforced_is_refused_by_name() -> None:
    strict = tool("f", a=UNIQUE)
    strict["function"]["strict"] = True  # type: ignore[index]
    with pytest.raises(InputError, match="strict") as refusal:
        call_grammar([tool("g"), strict], controls())
    assert refusal.value.param == "tools[1].function.parameters.properties.a.uniqueItems"


def test_of_other_tools_the_type_is_enforced_then() -> None:
    grammar = call_grammar([tool("f", a=UNIQUE)], controls())
    assert takes(grammar, xml_call("f", a="[1, 1]"))
    assert not takes(grammar, xml_call("f", a="1"))


def test_an_answer_in_json_may_stand_in_the_place_of_calls() -> None:
    grammar = call_grammar(TOOLS, controls(), answer=PERSON)
    for text in (CALL, f"{CALL}\n{CALL}", '\n\n{"name": "Ada", "age": 36}'):
        assert takes(grammar, text), text
    assert not takes(grammar, "Hello")
    with pytest.raises(InputError) as refusal:
        call_grammar(TOOLS, controls(), answer={"not": {}})
    assert refusal.value.param == "response_format.schema"


def test_quotes_and_backslashes_in_names_and_choices_are_only_text() -> None:
    definition = tool("f", **{'say "hi"\\': {"enum": ['"', "\\n", "é"]}})
    grammar = call_grammar([definition], controls())
    for choice in ('"', "\\n", "é"):
        assert takes(grammar, xml_call("f", **{'say "hi"\\': choice}))


def test_d05_a_grammar_waits_for_the_thought() -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=True)
    constraint = _constraint(reader, json_schema({"const": 1}))
    for token_id in [*ids_of("so so"), tokenizer_with().controls["</think>"].id]:
        assert constraint.mask(VOCAB) is None
        reader.push(int(constraint.swap(mx.array(token_id)).item()))
    assert _allowed(constraint) > {ids_of("1")[0]}
    assert ids_of("hm")[0] not in _allowed(constraint)
    reader.push(ids_of("1")[0])
    assert _allowed(constraint) == set(tokenizer_with().eos_ids)


@pytest.mark.parametrize("end_id", tokenizer_with().eos_ids)
def test_d05_a_thought_that_would_end_the_reply_is_closed_before_a_grammar(end_id: int) -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=True)
    constraint = _constraint(reader, json_schema({"const": 1}))
    assert constraint.mask(VOCAB) is None
    first, *rest = close_thought_ids(tokenizer_with())
    assert int(constraint.swap(mx.array(end_id)).item()) == first
    reader.push(first)
    for token_id in rest:
        assert _allowed(constraint) == {token_id}
        assert int(constraint.swap(mx.array(token_id)).item()) == token_id
        reader.push(token_id)
    assert _allowed(constraint) == {ids_of("1")[0]}
    assert int(constraint.swap(mx.array(end_id)).item()) == end_id


def test_without_a_grammar_a_thought_may_end_the_reply() -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=True)
    end_ids = tokenizer_with().eos_ids
    constraint = Constraint(reader, max_thought_tokens=9, closing_ids=(1, 2), end_ids=end_ids)
    assert constraint.mask(VOCAB) is None
    assert int(constraint.swap(mx.array(end_ids[0])).item()) == end_ids[0]


def test_d07_a_spent_budget_closes_the_thought_and_the_grammar_follows() -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=True)
    constraint = _constraint(reader, json_schema({"const": 1}), budget=2)
    for token_id in ids_of("so so"):
        assert constraint.mask(VOCAB) is None
        reader.push(token_id)
    for token_id in close_thought_ids(tokenizer_with()):
        assert _allowed(constraint) == {token_id}
        reader.push(token_id)
    assert _allowed(constraint) == {ids_of("1")[0]}


def _allowed(constraint: Constraint) -> set[int]:
    mask = constraint.mask(VOCAB)
    assert mask is not None
    return set(np.flatnonzero(np.array(mask)).tolist())


def _constraint(reader: ReplyReader, grammar: str, budget: int | None = None) -> Constraint:
    return Constraint(
        reader,
        max_thought_tokens=budget,
        closing_ids=close_thought_ids(tokenizer_with()),
        grammar=table().start(grammar),
        end_ids=tokenizer_with().eos_ids,
    )
