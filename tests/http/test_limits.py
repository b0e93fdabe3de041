"""How much a request may be: context, body size, nesting, numbers of messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model.errors import InputError
from server.http import schema, values
from server.http.schema import _without_surrogates, parse
from server.http.values import has_too_many_values
from server.openai.schema import ChatRequest
from server.settings import Settings
from tests.fakes.fake_engine import fake_served
from tests.fakes.live_server import ASK, Live, error_of, live

USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


@pytest.mark.parametrize("length", [100, 101, 5000])
def test_f08_a_prompt_that_fills_the_context_is_refused_with_both_numbers(length: int) -> None:
    overhead = len("user: ")
    with live(served=fake_served(context_length=100)) as server:
        error = server.refusal(messages=[{"role": "user", "content": "x" * (length - overhead)}])
        assert server.engine.requests == []
    assert error["code"] == "context_length_exceeded"
    assert {100, length} <= {int(number) for number in re.findall(r"\d+", error["message"])}


def test_f08_max_tokens_is_clamped_to_what_the_context_leaves() -> None:
    with live(served=fake_served(context_length=100)) as server:
        server.chat(max_tokens=1000)
        server.chat()
        server.chat(max_completion_tokens=5)
        n_prompt = len(server.engine.requests[0].prompt.ids)
        clamped = [request.max_tokens for request in server.engine.requests]
    assert clamped == [100 - n_prompt, 100 - n_prompt, 5]
    assert server.gateway.served.info.context_length == 100


def test_f08_the_models_endpoint_tells_the_true_limit() -> None:
    with live(served=fake_served(context_length=321)) as server:
        assert server.http.get("/v1/models/demo").json()["context_length"] == 321


def test_f11_a_body_over_the_limit_is_refused_declared_or_not() -> None:
    with live(settings=Settings(max_body=1000)) as server:
        long = {**ASK, "messages": [{"role": "user", "content": "x" * 2000}]}
        assert server.http.post("/v1/chat/completions", json=long).status_code == 413
        body = json.dumps(long).encode()
        response = server.http.post(
            "/v1/chat/completions",
            content=iter([body[:900], body[900:]]),
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code == 413
        error_of(response)
        assert server.chat().status_code == 200


def test_f11_fifty_megabytes_of_text_are_refused(server: Live) -> None:
    response = server.chat(messages=[{"role": "user", "content": "x" * 50_000_000}])
    assert response.status_code == 413


def test_f11_a_deeply_nested_schema_is_refused(server: Live) -> None:
    nested = "[" * 5000 + "]" * 5000
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{{"a":{nested}}}}}}}'
    body = f'{{"messages":[{{"role":"user","content":"Hi"}}],"tools":[{tool}]}}'
    response = server.http.post(
        "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400
    error_of(response)


def test_f11_ten_thousand_messages_are_answered() -> None:
    with live(served=fake_served(context_length=1 << 20)) as server:
        turns = [USER, {"role": "assistant", "content": "Yes?"}] * 5000
        assert server.chat(messages=[*turns, USER]).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        '{"messages": [' + "0," * 200_000 + "0]}",
        '{"messages": [' + '{"role": "user"},' * 30_000 + "0]}",
        '{"messages": [{"role": "user", "content": [' + "0," * 200_000 + "0]}]}",
        '{"messages": [{"role": "user", "content": "Hi"}], "tools": [' + "0," * 200_000 + "0]}",
        '{"messages": [{"role": "user", "content": "Hi"}], "stop": [' + "0," * 200_000 + "0]}",
        '{"messages": [{"role": "user", "content": "Hi"}], "logit_bias": {'
        + ",".join(f'"{n}": "x"' for n in range(30_000))
        + "}}",
        '{"messages": [{"role": "user", "content": "Hi"}], '
        + ",".join(f'"x{n}": 0' for n in range(30_000))
        + "}",
    ],
    ids=["numbers", "halves", "parts", "tools", "stops", "biases", "unknown"],
)
def test_x5_a_body_of_many_mistakes_has_one_told(body: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate_json(body)
    assert caught.value.error_count() <= 4
    with pytest.raises(InputError) as refusal:
        parse(ChatRequest, body.encode())
    assert len(refusal.value.message) < 1000


@pytest.mark.parametrize("token", [2**63, 2**64, 2**32, 10**30, -1, 256])
def test_x11_a_token_id_of_any_size_is_refused(server: Live, token: int) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": [1, token]}),
        ("/v1/completions", {"prompt": [[1], [token]]}),
        ("/detokenize", {"tokens": [token]}),
    ):
        response = server.http.post(path, json=body)
        assert response.status_code == 400, (path, response.text)
        assert error_of(response)["param"].startswith(next(iter(body)))
    assert server.chat(logit_bias={str(token): 1}).status_code == 400


def counted_by_hand(body: bytes) -> int:
    """What begins a value or a key outside strings, byte by byte."""
    n, is_inside, is_escaped = 0, False, False
    for byte in body:
        if byte == ord('"') and not is_escaped:
            is_inside = not is_inside
        elif byte in b",:[{" and not is_inside:
            n += 1
        is_escaped = byte == ord("\\") and not is_escaped
    return n


@given(
    st.lists(st.sampled_from([b"\\", b'"', b",", b":", b"[", b"a"]), max_size=60).map(b"".join),
    st.integers(1, 9),
)
def test_x5_values_are_counted_outside_strings_alone_however_the_chunks_fall(body: bytes, n: int) -> None:
    n_values = counted_by_hand(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "_CHUNK_BYTES", n)
        patch.setattr(values, "MAX_VALUES", n_values)
        assert not has_too_many_values(body)
        if n_values:
            patch.setattr(values, "MAX_VALUES", n_values - 1)
            assert has_too_many_values(body)


HI = '{"role": "user", "content": "Hi"}'
MANY = {
    "/v1/chat/completions": f'{{"messages": [{HI}], "metadata": {{"a": [%s]}}}}',
    "/v1/completions": '{"prompt": [%s]}',
    "/v1/responses": '{"input": [%s]}',
    "/v1/messages": '{"model": "demo", "max_tokens": 9, "messages": [%s]}',
    "/v1/messages/count_tokens": '{"model": "demo", "messages": [%s]}',
    "/tokenize": '{"messages": [%s]}',
    "/detokenize": '{"tokens": [%s]}',
}


@pytest.mark.parametrize("path", MANY)
@pytest.mark.parametrize("piece", ["0,", "[],", '"a",'])
def test_x5_a_body_of_a_million_values_is_refused_before_it_is_parsed(
    server: Live, path: str, piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydantic.BaseModel.model_validate_json", None)  # building its tree takes seconds
    for room in (schema, values):
        monkeypatch.setattr(room, "MAX_VALUES", 10_000)
    body = MANY[path] % (piece * 11_000)
    response = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert "values" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", f'{{"messages": [{HI + "," + HI}%s]}}', "messages"),
        ("/v1/responses", f'{{"input": [{HI}%s]}}', "input"),
        ("/v1/messages", f'{{"model": "demo", "max_tokens": 9, "messages": [{HI}%s]}}', "messages"),
        ("/v1/messages/count_tokens", f'{{"model": "demo", "messages": [{HI}%s]}}', "messages"),
        ("/tokenize", f'{{"messages": [{HI}%s]}}', "messages"),
    ],
)
def test_x5_more_messages_than_are_taken_are_refused_by_their_number(
    server: Live, path: str, body: str, field: str
) -> None:
    content = body % (f",{HI}" * 32_768)
    response = server.http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert field in message
    assert "at most 32768" in message
    assert len(message) < 200


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"\ud83d", rb"\ufffd"),
        (rb"\udc00\ud83d\udc00", rb"\ufffd\ud83d\udc00"),
        (rb"\\\ud83d", rb"\\\ufffd"),
        (rb"\\ud83d\udc00", rb"\\ud83d\ufffd"),
        (rb"\\\\", rb"\\\\"),
        (rb"\uD83D\uDC00\udc00", rb"\uD83D\uDC00\ufffd"),
    ],
)
def test_half_a_character_is_replaced_and_a_whole_one_is_not(sent: bytes, read: bytes) -> None:
    assert _without_surrogates(sent) == read
