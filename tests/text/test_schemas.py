"""JSON schemas of strangers: what is enforced of them, what is refused, and what they may cost."""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import GrammarError, InputError
from model.text.arguments import parameter_type
from model.text.grammar.calls import TextForm, call_grammar, text_tool
from model.text.grammar.compiler import GrammarCompiler
from model.text.grammar.rules import json_schema
from model.text.schemas.checking import checked_schema
from model.text.schemas.fitting import fits
from model.text.schemas.reading import kinds_of
from tests.fakes.chatml import tokenizer_with, tool
from tests.fakes.grammars import VOCAB, controls, table, takes
from tests.fakes.scripted import xml_call

STRING = {"type": "string"}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(tokenizer_with(), VOCAB)
    yield compiler
    compiler.close()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tags: set[str] = set()


class Everything(pydantic.BaseModel):
    """What pydantic makes of the types that people use."""

    id: pydantic.UUID4
    counts: dict[Colour, int]
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    path: pydantic.FilePath | None = None
    secret: pydantic.SecretStr | None = None
    ratio: Annotated[float, pydantic.Field(gt=0, le=1)] = 0.5
    pair: tuple[int, str] = (1, "a")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({**STRING, "format": "uuid4"}, '"x"', "1"),
        ({**STRING, "format": "made-up"}, '"x"', "1"),
        ({**STRING, "format": "date"}, '"2026-11-30"', '"soon"'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, 2]", '["a"]'),
        ({"type": "object", "propertyNames": STRING}, '{"a": 1}', "1"),
        (
            {
                "type": "object",
                "propertyNames": {"enum": ["a", "b"]},
                "additionalProperties": {"type": "integer"},
            },
            '{"b": 1}',
            '{"c": 1}',
        ),
        (
            {
                "type": "object",
                "propertyNames": {"$ref": "#/$defs/c"},
                "additionalProperties": {"type": "integer"},
                "$defs": {"c": {"enum": ["a"]}},
            },
            '{"a": 1}',
            '{"b": 1}',
        ),
        ({"type": "object", "propertyNames": {"pattern": "^x"}}, '{"x1": 1}', '{"y": 1}'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1.5", '"a"'),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, '"a"', "1.5"),
        ({"not": {"type": "null"}}, "1", "null"),
        ({"enum": ["a", "b"], "not": {"const": "a"}}, '"b"', '"a"'),
        (
            {"type": "object", "additionalProperties": {"not": {}}, "properties": {"a": STRING}},
            '{"a": "x"}',
            '{"b": 1}',
        ),
        ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, "{}", "1"),
        ({"type": "string", "pattern": "(?=a)a"}, '"b"', "1"),
        ({"type": "string", "nullable": True}, "null", "1"),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, "2", "1"),
        (
            {"type": "array", "items": [{"type": "integer"}, STRING], "additionalItems": False},
            '[1, "a"]',
            '["a"]',
        ),
        ({"$schema": "http://nowhere.example/draft", "$id": "x:y", "type": "integer"}, "1", '"a"'),
        (
            {"type": "object", "unevaluatedProperties": False, "properties": {"a": STRING}},
            '{"a": "b"}',
            '{"c": 1}',
        ),
        ({"type": "number", "minimum": 0.5, "maximum": 1e300}, "1", '"a"'),
        ({"type": "integer", "multipleOf": 300007}, "1", '"a"'),
        ({"type": "string", "contentEncoding": "base64", "readOnly": True, "x-mine": 1}, '"a"', "1"),
    ],
)
def test_s1_what_can_be_enforced_is_and_the_rest_is_an_annotation(
    schema: dict[str, Any], good: str, bad: str
) -> None:
    grammar = json_schema(schema)
    assert takes(grammar, good)
    assert not takes(grammar, bad)


def test_s1_a_model_of_pydantics_is_taken_as_it_comes() -> None:
    grammar = json_schema(Everything.model_json_schema())
    value = {
        "id": "8c1f2a9e-0d5b-4f6e-9a63-0f6a4b2f1c11",
        "counts": {"red": 1},
        "pet": {"kind": "dog", "tags": ["a"]},
        "ratio": 0.5,
    }
    assert takes(grammar, json.dumps(value))
    assert not takes(grammar, json.dumps({**value, "pet": {"kind": "bird"}}))
    assert not takes(grammar, json.dumps({**value, "counts": {"green": 1}}))


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
        ({"properties": {"a": {"type": "string", "pattern": r"(a)\1"}}}, ".properties.a.pattern"),
        ({"type": "object", "if": {}, "then": {"required": ["a"]}}, ".if"),
        ({"items": {"type": "array", "contains": STRING}}, ".items.contains"),
        ({"anyOf": [STRING, {"not": {"minimum": 3}}]}, ".anyOf[1].not"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ".oneOf"),
        (
            {"$defs": {"a": {"dependentRequired": {"x": ["y"]}}}, "$ref": "#/$defs/a"},
            ".$defs.a.dependentRequired",
        ),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, ".propertyNames"),
        ({"type": "integer", "multipleOf": 300007}, ".multipleOf"),
    ],
)
def test_s1_a_strict_schema_is_refused_by_the_keyword_that_nothing_keeps(
    schema: dict[str, Any], keyword: str
) -> None:
    json_schema(schema)
    with pytest.raises(InputError, match="strict") as refusal:
        json_schema(schema, is_strict=True)
    assert refusal.value.param == f"response_format.schema{keyword}"
    assert refusal.value.code == "invalid_schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"const": 1}, {"const": 2}]},
        Everything.model_json_schema()["properties"]["pet"]
        | {"$defs": Everything.model_json_schema()["$defs"]},
        {**STRING, "format": "iri", "contentEncoding": "base64"},
        {"type": "object", "propertyNames": STRING},
    ],
)
def test_s1_a_strict_schema_is_taken_where_nothing_is_lost(schema: dict[str, Any]) -> None:
    for part in schema.get("$defs", {}).values():
        part.get("properties", {}).get("tags", {}).pop("uniqueItems", None)
    json_schema(schema, is_strict=True)


@pytest.mark.parametrize(
    ("said", "good", "bad"),
    [
        ({"maxLength": 3}, "abc", "abcd"),
        ({"minLength": 2}, "ab", "a"),
        ({"pattern": "^[a-z]+$"}, "abc", "a1"),
        ({"pattern": "b/c"}, "ab/cd", "abcd"),
        ({"pattern": "^a", "maxLength": 4}, "abc", "cab"),
    ],
)
def test_s1_length_and_pattern_of_a_tools_string_are_kept_in_its_raw_form(
    said: dict[str, Any], good: str, bad: str
) -> None:
    grammar = call_grammar([tool("f", a={**STRING, **said})], controls())
    assert takes(grammar, xml_call("f", a=good))
    assert not takes(grammar, xml_call("f", a=bad))


def test_s1_a_strict_tool_is_refused_for_a_pattern_that_nothing_keeps() -> None:
    definition = tool("f", a={**STRING, "pattern": "^a|b$"})
    call_grammar([definition], controls())
    definition["function"]["strict"] = True  # type: ignore[index]
    with pytest.raises(InputError) as refusal:
        call_grammar([definition], controls(), places=["tools[3]"])
    assert refusal.value.param == "tools[3].function.parameters.properties.a.pattern"


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [], "description": "x" * 30_000},
        {"$ref": "https://example.com/" + "x" * 30_000},
        {"type": "y" * 30_000},
        {"properties": {"p" * 30_000: {"type": 3}}},
    ],
)
def test_s2_a_refusal_is_a_sentence(schema: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refusal:
        json_schema(schema)
    assert len(refusal.value.message) < 700
    assert "\n" not in refusal.value.message
    assert "start:" not in refusal.value.message


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"required": True}, ".required"),
        ({"properties": ["a"]}, ".properties"),
        ({"properties": {"a": {"required": True}}}, ".properties.a.required"),
        ({"properties": {"a": 3}}, ".properties.a"),
        ({"properties": {"a": {"enum": "b"}}}, ".properties.a.enum"),
        ({"properties": {"a": {"type": "text"}}}, ".properties.a.type"),
        ({"properties": {"a": {"anyOf": {}}}}, ".properties.a.anyOf"),
        ({"properties": {"a": {"anyOf": [1]}}}, ".properties.a.anyOf[0]"),
        ({"properties": {"a": {"minLength": -1}}}, ".properties.a.minLength"),
        ({"additionalProperties": "no"}, ".additionalProperties"),
        ({"$defs": []}, ".$defs"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, ".properties.a.$ref"),
    ],
)
def test_s4_a_keyword_that_is_no_schemas_is_named_by_its_path(schema: dict[str, Any], path: str) -> None:
    where = "tools[0].function.parameters"
    with pytest.raises(InputError) as refusal:
        checked_schema(schema, where)
    assert refusal.value.param == where + path
    with pytest.raises(InputError) as refusal:
        call_grammar([{"type": "function", "function": {"name": "f", "parameters": schema}}], controls())
    assert refusal.value.param == where + path


names = st.sampled_from("ab")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10)
    | st.floats(-2, 2)
    | st.sampled_from(["string", "#", "["]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
    max_leaves=5,
)
keywords = st.sampled_from(
    [
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "$ref",
        "$defs",
        "definitions",
        "nullable",
        "pattern",
        "minLength",
        "maximum",
        "exclusiveMinimum",
        "multipleOf",
        "uniqueItems",
        "format",
        "propertyNames",
        "patternProperties",
        "unevaluatedProperties",
        "dependentRequired",
        "contains",
        "title",
        "$id",
        "$schema",
    ]
)
sensible = st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "object", "array", "null"])})
schemas = st.recursive(
    st.booleans() | sensible | st.sampled_from([{"$ref": "#"}, {"$ref": "#/$defs/a"}, {"enum": ["a", 1]}]),
    lambda inner: st.dictionaries(
        keywords,
        inner | st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2) | json_values,
        max_size=4,
    ),
    max_leaves=12,
)


@given(schemas, st.booleans())
@settings(max_examples=200, deadline=None)
def test_s4_whatever_is_sent_as_a_schema_is_compiled_or_refused(schema: Any, is_strict: bool) -> None:
    with contextlib.suppress(InputError):
        json_schema(schema, is_strict=is_strict, max_string_chars=100)
    definition = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": is_strict}}
    with contextlib.suppress(InputError):
        call_grammar([definition], controls())
    with contextlib.suppress(InputError):
        checked_schema(schema, "x")
        for value in ({}, {"a": 1}, {"a": {"b": "x"}}):
            fits(schema, value)
        for text in ("1", "a", '{"a": 1}', "null"):
            json.loads(parameter_type(schema, "a").to_json(text))


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 30}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        LOOP,
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"oneOf": [{"type": "string"}, {"$ref": "#"}]}}},
        {"properties": {"x": {"$ref": "#/properties/y"}, "y": {"$ref": "#/properties/x"}}},
    ],
)
def test_t10_a_value_that_is_defined_by_itself_alone_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="itself") as refusal:
        json_schema(schema)
    assert refusal.value.code == "invalid_schema"


def test_t10_a_value_that_holds_others_of_its_kind_is_taken() -> None:
    tree = {"type": "object", "properties": {"of": {"type": "array", "items": {"$ref": "#"}}}}
    assert takes(json_schema(tree), '{"of": [{"of": []}]}')


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "allOf": [{"pattern": f"a{n}"} for n in range(27)]},
        {"type": "string", "allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(100)]},
        {"type": "object", "properties": {f"p{n}": STRING for n in range(12_000)}},
        {"type": "string", "pattern": "^(a{1,1000}){1000}$"},
    ],
)
def test_s3_what_takes_too_much_is_refused_and_the_next_schema_is_compiled(
    compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    for _ in range(2):  # the second time from memory
        with pytest.raises(InputError) as refusal:
            compiler.json(schema)
        assert refusal.value.code == "invalid_schema"
        assert refusal.value.param == "response_format.schema"
    assert takes(compiler.json(STRING), '"a"')


def test_s3_a_process_that_is_out_of_memory_is_a_refusal() -> None:
    small = GrammarCompiler(tokenizer_with(), VOCAB, memory_bytes=280 * 2**20, timeout_s=60)
    try:
        assert takes(small.json(STRING), '"a"')
        schema = {"type": "string", "allOf": [{"pattern": f"a{n}"} for n in range(27)]}
        with pytest.raises(InputError, match="memory") as refusal:
            small.json(schema)
        assert refusal.value.code == "invalid_schema"
        assert takes(small.json({"type": "integer"}), "1")
    finally:
        small.close()


def test_s3_the_process_ends_with_the_one_that_started_it() -> None:
    compiler = GrammarCompiler(tokenizer_with(), VOCAB)
    compiler.json(STRING)
    process = compiler._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # as when that one is killed
    assert process.wait(10) == 0
    compiler.close()


def test_s3_a_process_that_was_ended_from_outside_is_started_anew(compiler: GrammarCompiler) -> None:
    compiler.json(STRING)
    if compiler._process is None:
        compiler.start()
    assert compiler._process is not None
    compiler._process.kill()
    compiler._process.wait()
    assert takes(compiler.json({"type": "integer", "maximum": 7}), "1")


def test_s3_what_was_compiled_is_remembered(compiler: GrammarCompiler) -> None:
    first = compiler.json({"type": "string", "maxLength": 7})
    compiler.close()
    assert compiler.json({"type": "string", "maxLength": 7}) is first
    assert compiler._process is None


def test_x4_an_object_of_many_optional_members_is_written(compiler: GrammarCompiler) -> None:
    grammar = compiler.json({"type": "object", "properties": {f"p{n}": STRING for n in range(600)}})
    assert takes(grammar, '{"p599": "x"}')


def test_x4_a_grammar_that_fails_while_masking_says_so() -> None:
    many = {"type": "object", "properties": {f"p{n}": STRING for n in range(5_000)}}
    reading = table().start(json_schema(many))
    for token in tokenizer_with().encode_text('{"'):
        reading.mask()
        reading.accept(int(token))
    with pytest.raises(GrammarError):
        reading.mask()


def test_x4_no_walk_of_a_schema_is_exponential() -> None:
    branching: dict[str, Any] = {"$defs": {"n0": STRING}}
    for n in range(30):
        branching["$defs"][f"n{n + 1}"] = {"anyOf": [{"$ref": f"#/$defs/n{n}"}] * 8}
    branching["properties"] = {"a": {"$ref": "#/$defs/n30"}}
    checked_schema(branching, "x")
    assert kinds_of({"$ref": "#/$defs/n30"}, branching) == {"string"}
    assert not fits(branching, {"a": 1})  # at once
    assert fits({"properties": {"a": {"anyOf": [STRING] * 8}}}, {"a": "b"})
    assert not fits({"properties": {"a": LOOP["$defs"]["a"]}, "$defs": LOOP["$defs"]}, {"b": 1})


def test_x4_a_value_that_would_take_for_ever_to_judge_does_not_fit() -> None:
    node = {"type": "object", "properties": {"c": {"$ref": "#/$defs/node"}}, "required": ["z"]}
    tree = {"$defs": {"node": {"anyOf": [node] * 8}}, "properties": {"a": {"$ref": "#/$defs/node"}}}
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"c": value}
    assert not fits(tree, {"a": value})


def test_x4_a_chain_of_references_has_an_end() -> None:
    chain: dict[str, Any] = {f"c{n}": {"$ref": f"#/$defs/c{n + 1}"} for n in range(3_000)}
    with pytest.raises(InputError, match="by way of"):
        checked_schema(
            {"$defs": {**chain, "c3000": STRING}, "properties": {"a": {"$ref": "#/$defs/c0"}}}, "x"
        )
    nested: dict[str, Any] = STRING
    for _ in range(200):
        nested = {"items": nested}
    with pytest.raises(InputError, match="deeply"):
        checked_schema(nested, "x")


def test_x4_the_librarys_panics_are_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicError(BaseException):
        pass

    def panic(*_: object) -> None:
        raise PanicError

    monkeypatch.setattr("llguidance.LLMatcher.validate_grammar_with_warnings", panic, raising=False)
    with pytest.raises(InputError) as refusal:
        json_schema({"type": "object", "title": "é"})
    assert refusal.value.code == "invalid_schema"


def test_x4_a_mistake_behind_letters_beyond_ascii_is_a_refusal(compiler: GrammarCompiler) -> None:
    with pytest.raises(InputError) as refusal:
        compiler.json({"properties": {"é": {"type": "strin", "description": "ü" * 50}}})
    assert refusal.value.param == "response_format.schema.properties.é.type"


def test_x5_a_schema_of_any_length_is_refused_before_it_is_read() -> None:
    with pytest.raises(InputError, match="characters") as refusal:
        checked_schema({"enum": [f"value {n}" for n in range(100_000)]}, "tools[0].function.parameters")
    assert refusal.value.code == "invalid_schema"


def test_s5_strings_are_bounded_where_they_have_no_limit_of_their_own() -> None:
    schema = {
        "type": "object",
        "properties": {"a": STRING, "b": {**STRING, "maxLength": 9}, "c": {"type": ["string", "null"]}},
    }
    grammar = json_schema(schema, max_string_chars=5)
    assert takes(grammar, '{"a": "12345", "b": "123456789", "c": null}')
    assert not takes(grammar, '{"a": "123456"}')
    assert not takes(grammar, '{"c": "123456"}')


ARITHMETIC = 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/'


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (TextForm("lark", ARITHMETIC), "1+23", "1+"),
        (
            TextForm("lark", "start: line+\nline: WORD LF\n%import common.WORD\n%import common.LF"),
            "a\nb\n",
            "1\n",
        ),
        (TextForm("regex", "[a-c]+/x"), "abc/x", "abd/x"),
        (TextForm("regex", "a\nb"), "a\nb", "ab"),
    ],
)
def test_the_free_text_of_a_tool_keeps_to_its_form(form: TextForm, good: str, bad: str) -> None:
    tools = [text_tool("calc", "Calculates.", form), tool("g")]
    grammar = call_grammar(tools, controls(), text_before=True, forms={"calc": form})
    assert takes(grammar, f"So:\n\n{xml_call('calc', input=good)}")
    assert takes(grammar, xml_call("g"))
    assert not takes(grammar, xml_call("calc", input=bad))


def test_the_free_text_of_a_tool_without_a_form_is_any_text() -> None:
    definition = text_tool("note")
    assert definition["function"]["parameters"]["required"] == ["input"]
    assert takes(call_grammar([definition], controls()), xml_call("note", input="any <text>\n at all"))


@pytest.mark.parametrize(
    "form",
    [
        TextForm("lark", "start: ("),
        TextForm("lark", "begin: /a/"),
        TextForm("lark", 'start: "a" }\nx: "b"'),
        TextForm("regex", "(?=a)"),
        TextForm("regex", "("),
    ],
)
def test_a_form_that_does_not_compile_is_refused(form: TextForm) -> None:
    with pytest.raises(InputError) as refusal:
        call_grammar([text_tool("f", form=form)], controls(), forms={"f": form}, places=["tools[2]"])
    assert refusal.value.param == "tools[2].format.definition"
    assert refusal.value.code == "invalid_schema"


def test_forms_cross_to_the_process_that_compiles(compiler: GrammarCompiler) -> None:
    form = TextForm("lark", ARITHMETIC)
    grammar = compiler.calls([text_tool("calc", form=form)], forms={"calc": form})
    assert takes(grammar, xml_call("calc", input="1+2"))
    assert not takes(grammar, xml_call("calc", input="a"))
