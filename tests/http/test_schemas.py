"""Schemas over HTTP, with the real engine: kept, shown, and refused where they cost too much."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from tests.fakes.asking import QUESTION, SYSTEM, ask, message_of
from tests.fakes.fake_engine import FakeEngine, InlineGrammars, fake_served
from tests.fakes.live_server import Live, error_of, live, live_demo

STRING = {"type": "string"}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_demo() as running:
        yield running


def form_of(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


def test_s5_a_conversation_in_json_goes_on_from_what_was_read(server: Live) -> None:
    options = {
        "temperature": 0,
        "max_tokens": 100,
        "response_format": form_of(PERSON),
        "prompt_cache_key": "s5",
    }
    first = ask(server, SYSTEM, QUESTION, enable_thinking=False, **options)
    said = message_of(first)["content"]
    assert set(json.loads(said)) == {"name", "age"}
    turn = [SYSTEM, QUESTION, {"role": "assistant", "content": said}, {"role": "user", "content": "And now?"}]
    warm = ask(server, *turn, enable_thinking=False, **options)
    before = server.http.post("/tokenize", json={"messages": [SYSTEM, QUESTION]}).json()["count"]
    assert warm["crossturn"]["reused_tokens"] >= before - 8  # all but the head of the reply
    cold = ask(server, *turn, enable_thinking=False, **{**options, "prompt_cache_key": "other"})
    assert message_of(warm)["content"] == message_of(cold)["content"]


def test_t7_json_without_a_thought_begins_with_itself(server: Live) -> None:
    options = {"temperature": 0, "max_tokens": 100, "response_format": form_of(PERSON)}
    body = ask(server, QUESTION, enable_thinking=False, **options)
    assert message_of(body)["content"].startswith("{")


class SlowGrammars(InlineGrammars):
    """Writes nothing until it is told to."""

    def __init__(self) -> None:
        self.is_asked, self.may_go_on = Event(), Event()

    def json(self, schema: Mapping[str, Any], **options: Any) -> str:
        self.is_asked.set()
        assert self.may_go_on.wait(60)
        return super().json(schema, **options)


def test_s3_while_a_schema_is_compiled_others_are_answered() -> None:
    grammars = SlowGrammars()
    served = replace(fake_served(), grammars=grammars)
    with live(FakeEngine(), served) as running, ThreadPoolExecutor(1) as clients:
        held = clients.submit(running.chat, response_format=form_of(PERSON))
        assert grammars.is_asked.wait(60)
        assert running.chat().status_code == 200
        assert not held.done()
        grammars.may_go_on.set()
        assert held.result().status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "allOf": [{"pattern": f"a{n}"} for n in range(27)]},
        {"type": "object", "properties": {f"p{n}": STRING for n in range(8_000)}},
        {"type": "string", "pattern": "^(a{1,1000}){1000}$"},
    ],
)
def test_x4_a_schema_that_costs_too_much_is_refused_and_others_are_answered(
    server: Live, schema: dict[str, Any]
) -> None:
    with ThreadPoolExecutor(2) as clients:
        hostile = clients.submit(server.chat, response_format=form_of(schema))
        other = clients.submit(ask, server, QUESTION, max_tokens=4)
        error = error_of(hostile.result())
        assert hostile.result().status_code == 400
        assert error["code"] == "invalid_schema"
        assert error["param"] == "response_format.json_schema.schema"
        assert message_of(other.result())
    answer = ask(server, QUESTION, response_format=form_of(PERSON), max_tokens=100, enable_thinking=False)
    assert set(json.loads(message_of(answer)["content"])) == {"name", "age"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$ref": "#"}, ""),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 40}}}, ""),
        ({"properties": {"é": {"type": "strin"}}}, ".properties.é.type"),
        ({"required": True}, ".required"),
    ],
)
def test_x4_a_schema_that_makes_no_sense_is_refused_by_its_path(
    server: Live, schema: dict[str, Any], path: str
) -> None:
    error = server.refusal(response_format=form_of(schema))
    assert error["param"] == f"response_format.json_schema.schema{path}"
    assert error["code"] == "invalid_schema"
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    assert server.refusal(tools=tools)["param"] == f"tools[0].function.parameters{path}"


def test_x6_a_text_that_cannot_fit_is_refused_before_it_is_encoded(server: Live) -> None:
    text = "0123456789" * 200_000
    for response in (
        server.chat(messages=[{"role": "user", "content": text}]),
        server.http.post("/v1/completions", json={"prompt": text}),
        server.http.post("/tokenize", json={"prompt": text}),
        server.http.post("/tokenize", json={"messages": [{"role": "user", "content": text}]}),
    ):
        assert response.status_code == 400
        assert error_of(response)["code"] == "context_length_exceeded"
