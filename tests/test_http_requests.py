"""What a chat request may say, and how it is refused otherwise. Rows of the case list are named by id."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fake_engine import FakeChat, FakeEngine, fake_served
from live_server import ASK, Live, error_of, live

from cache.planner import CrossTurnSlotId
from model.sampling import SamplingParams
from server.served import Served
from server.settings import Settings

USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


def last_request(server: Live) -> Any:
    assert server.engine.requests
    return server.engine.requests[-1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": "2"}, "n"),
        ({"top_p": 2}, "top_p"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"256": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": ...}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "Hi", "mood": "good"}]}, "messages[0].mood"),
        ({"messages": [{"role": "assistant", "content": "Hi", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"store": True}, "store"),
        ({"store": 0}, "store"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"functions": []}, "functions"),
        ({"temprature": 1}, "temprature"),
        ({"reasoning_effort": "lots"}, "reasoning_effort"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)
def test_f05_a_value_out_of_range_is_refused_by_name(
    server: Live, fields: dict[str, Any], param: str
) -> None:
    error = server.refusal(**fields)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", ["", "{", "nonsense", "[1]", '"text"', "null", '{"model": "\\ud800"}'])
def test_f05_a_body_that_is_no_json_object_is_refused(server: Live, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = server.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_json"


@pytest.mark.parametrize("media_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_f05_a_body_not_declared_to_be_json_is_refused(server: Live, media_type: str | None) -> None:
    headers = {} if media_type is None else {"Content-Type": media_type}
    response = server.http.post("/v1/chat/completions", content=json.dumps(ASK), headers=headers)
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405)],
)
def test_unknown_paths_and_methods_are_errors_of_the_same_shape(
    server: Live, method: str, path: str, status: int
) -> None:
    response = server.http.request(method, path)
    assert response.status_code == status
    error_of(response)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/chat/completions", "POST"),
        ("/health", "GET"),
        ("/v1", "GET, HEAD"),
        ("/v1/slots/0", "GET, DELETE"),
    ],
)
def test_a_refused_method_is_told_all_that_may_be_done(server: Live, path: str, methods: str) -> None:
    assert server.http.put(path).headers["allow"] == methods


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_f03_a_part_that_is_not_text_is_refused_by_type_and_index(server: Live, kind: str) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "data:,"}}]
    error = server.refusal(messages=[USER, {"role": "user", "content": parts}])
    assert error["param"] == "messages[1].content[1]"
    assert kind in error["message"]


def test_null_is_absent_in_every_field(server: Live) -> None:
    fields = [name for name in _fields() if name != "messages"]
    response = server.chat(**dict.fromkeys(fields))
    assert response.status_code == 200
    assert last_request(server).sampling == SamplingParams()


def _fields() -> list[str]:
    from server.schema_chat import ChatRequest

    return list(ChatRequest.model_fields)


def test_what_a_request_says_reaches_the_engine(server: Live) -> None:
    server.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=20,
        min_p=0.1,
        seed=7,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"9": 2, "7": -1},
        stop=["a", "", "b", "a"],
        max_tokens=12,
        n=3,
        logprobs=True,
        top_logprobs=4,
    )
    request = last_request(server)
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=20,
        min_p=0.1,
        seed=7,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias=((7, -1), (9, 2)),
    )
    assert request.reply.stops == ("a", "b")
    assert (request.max_tokens, request.n_replies, request.top_logprobs) == (12, 3, 4)


@pytest.mark.parametrize("stop", [None, "", [], [""]])
def test_f10_empty_stops_stop_nothing(server: Live, stop: Any) -> None:
    assert server.chat(stop=stop).status_code == 200
    assert last_request(server).reply.stops == ()


def test_defaults_come_from_the_model_and_give_way_to_the_request() -> None:
    served = fake_served(sampling=SamplingParams(temperature=0.6, top_p=0.95, top_k=20))
    with live(served=served) as server:
        server.chat(top_k=0)
        assert last_request(server).sampling == SamplingParams(temperature=0.6, top_p=0.95, top_k=0)


def test_f10_every_name_of_the_model_is_taken_and_no_other() -> None:
    with live(served=fake_served("alias", "demo", "/models/demo")) as server:
        for name in ("alias", "demo", "/models/demo", ...):
            assert server.chat(model=name).json()["model"] == "alias"
        response = server.chat(model="gpt-4o")
        assert response.status_code == 404
        assert error_of(response)["code"] == "model_not_found"
        assert [model.id for model in server.openai.models.list()] == ["alias", "demo", "/models/demo"]
        assert server.openai.models.retrieve("/models/demo").id == "/models/demo"
        assert server.http.get("/v1/models/gpt-4o").status_code == 404


@pytest.mark.parametrize(
    ("headers", "fields", "key"),
    [
        ({}, {}, None),
        ({"X-Session-Id": "h"}, {"prompt_cache_key": "p", "metadata": {"session_id": "m"}}, "h"),
        ({"X-Session-Id": ""}, {"prompt_cache_key": "p", "metadata": {"session_id": "m"}}, "p"),
        ({}, {"metadata": {"session_id": "m", "other": "x"}}, "m"),
        ({}, {"metadata": {"other": "x"}}, None),
    ],
)
def test_the_session_key_is_looked_for_in_order(
    server: Live, headers: dict[str, str], fields: dict[str, Any], key: str | None
) -> None:
    response = server.http.post("/v1/chat/completions", json={**ASK, **fields}, headers=headers)
    assert response.json()["crossturn"]["slot"] == str(CrossTurnSlotId.for_session(None, key))


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


def test_a_message_that_the_template_refuses_is_a_400_that_names_it(server: Live) -> None:
    error = server.refusal(messages=[USER, {"role": "user", "content": "unrenderable"}])
    assert error["param"] == "messages[1].content"


@pytest.mark.parametrize(
    ("fields", "continues"),
    [
        ({}, True),
        ({"continue_final_message": True}, True),
        ({"add_generation_prompt": False}, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, True),
        ({"continue_final_message": False}, None),
        ({"add_generation_prompt": True}, None),
        ({"continue_final_message": True, "add_generation_prompt": True}, None),
    ],
)
def test_a_last_assistant_message_is_continued_or_refused(
    fields: dict[str, Any], continues: bool | None
) -> None:
    served = fake_served()
    messages = [USER, {"role": "assistant", "content": "Once"}]
    with live(served=served) as server:
        response = server.chat(messages=messages, **fields)
    assert response.status_code == (400 if continues is None else 200)
    if continues is not None:
        assert renders_of(served)[-1]["continue_final"] is continues


def renders_of(served: Served) -> list[dict[str, Any]]:
    assert isinstance(served.chat, FakeChat)
    return served.chat.renders


@pytest.mark.parametrize(
    ("fields", "default", "kwargs"),
    [
        ({}, None, {}),
        ({}, False, {"enable_thinking": False}),
        ({"enable_thinking": True}, False, {"enable_thinking": True}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True, {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, None, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, False, {"enable_thinking": True}),
        ({"enable_thinking": False, "reasoning_effort": "none"}, None, {"enable_thinking": False}),
    ],
)
def test_d03_every_spelling_of_thinking_works_and_beats_the_server(
    fields: dict[str, Any], default: bool | None, kwargs: dict[str, Any]
) -> None:
    served = fake_served()
    with live(served=served, settings=Settings(thinking=default)) as server:
        assert server.chat(**fields).status_code == 200
    assert renders_of(served)[-1]["template_kwargs"] == kwargs


def test_efforts_are_budgets_where_the_template_has_no_words_for_them(server: Live) -> None:
    for effort, budget in (("minimal", 256), ("low", 1024), ("medium", 4096), ("high", None), ("max", None)):
        server.chat(reasoning_effort=effort)
        assert last_request(server).reply.max_thought_tokens == budget
    server.chat(reasoning_effort="low", thinking_budget=9)
    assert last_request(server).reply.max_thought_tokens == 9


def test_efforts_go_to_a_template_that_knows_them() -> None:
    served = fake_served()
    assert isinstance(served.chat, FakeChat)
    served.chat.variables |= {"reasoning_effort"}
    with live(served=served) as server:
        server.chat(reasoning_effort="minimal")
        assert last_request(server).reply.max_thought_tokens is None
    assert renders_of(served)[-1]["template_kwargs"] == {"enable_thinking": True, "reasoning_effort": "low"}


def test_f11_a_body_over_the_limit_is_refused_declared_or_not() -> None:
    with live(settings=Settings(max_body_bytes=1000)) as server:
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


def test_messages_reach_the_template_as_they_were_sent() -> None:
    served = fake_served()
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
    ]
    with live(served=served) as server:
        assert server.chat(messages=messages).status_code == 200
    rendered = renders_of(served)[-1]["messages"]
    assert rendered[1:2] == messages[1:2]
    assert json.dumps(rendered[2]["tool_calls"]) == json.dumps([call])
    assert rendered[2]["reasoning_content"] == "hm"


def test_metadata_and_service_tier_come_back(server: Live) -> None:
    body = server.chat(metadata={"a": "b"}, service_tier="auto").json()
    assert body["metadata"] == {"a": "b"}
    assert body["service_tier"] == "default"


def test_g04_preflights_need_no_key_and_answers_carry_cors_headers() -> None:
    settings = Settings(api_keys=("secret",))
    with live(FakeEngine(), settings=settings) as server:
        for path in ("/v1/models", "/v1/chat/completions"):
            response = server.http.options(
                path,
                headers={
                    "Authorization": "",
                    "Origin": "http://app.example",
                    "Access-Control-Request-Method": "POST",
                    "Access-Control-Request-Headers": "authorization,content-type",
                },
            )
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] in ("*", "http://app.example")
        answer = server.http.get("/v1/models", headers={"Origin": "http://app.example"})
        assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("HEAD", "/"), ("GET", "/"), ("GET", "/v1"), ("GET", "/version")]
)
def test_g04_open_endpoints_ask_for_no_key(method: str, path: str) -> None:
    with live(settings=Settings(api_keys=("secret",))) as server:
        response = server.http.request(method, path, headers={"Authorization": ""})
        assert response.status_code == 200


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Basic secret", "Bearer", "Bearer sécret"])
def test_without_a_known_key_nothing_is_told(authorization: str) -> None:
    with live(settings=Settings(api_keys=("secret", "other"))) as server:
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models")):
            headers = {"Authorization": authorization.encode("latin-1")}
            response = server.http.request(method, path, json=ASK, headers=headers)
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"


def test_keys_are_tenants_whose_slots_differ() -> None:
    with live(settings=Settings(api_keys=("one", "two"))) as server:
        slots = {
            server.http.post(
                "/v1/chat/completions",
                json={**ASK, "prompt_cache_key": "k"},
                headers={"Authorization": f"Bearer {key}"},
            ).json()["crossturn"]["slot"]
            for key in ("one", "two")
        }
    assert len(slots) == 2
