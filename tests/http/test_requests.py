"""What a chat request may say, and how it is refused otherwise. Rows of the case list are named by id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from model.sampling import SamplingParams
from server.openai.schema import ChatRequest
from tests.fakes.fake_engine import fake_served
from tests.fakes.live_server import ASK, Live, error_of, live

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
        ({"n": 0, "stream": True}, "n"),
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


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_f03_a_part_that_is_not_text_is_refused_by_type_and_index(server: Live, kind: str) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "data:,"}}]
    error = server.refusal(messages=[USER, {"role": "user", "content": parts}])
    assert error["param"] == "messages[1].content[1]"
    assert kind in error["message"]


def test_null_is_absent_in_every_field(server: Live) -> None:
    fields = [name for name in ChatRequest.model_fields if name != "messages"]
    response = server.chat(**dict.fromkeys(fields))
    assert response.status_code == 200
    assert last_request(server).sampling == SamplingParams()


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


def test_f05_too_many_stops_are_said_to_be_too_many(server: Live) -> None:
    assert "at most 4 items" in server.refusal(stop=["a"] * 5)["message"]
    assert "valid string" in server.refusal(stop=3)["message"]


@pytest.mark.parametrize("stop", [None, "", [], [""]])
def test_f10_empty_stops_stop_nothing(server: Live, stop: Any) -> None:
    assert server.chat(stop=stop).status_code == 200
    assert last_request(server).reply.stops == ()


def test_defaults_come_from_the_model_and_give_way_to_the_request() -> None:
    served = fake_served(sampling=SamplingParams(temperature=0.6, top_p=0.95, top_k=20))
    with live(served=served) as server:
        server.chat(top_k=0)
        assert last_request(server).sampling == SamplingParams(temperature=0.6, top_p=0.95, top_k=0)


def test_metadata_and_service_tier_come_back(server: Live) -> None:
    body = server.chat(metadata={"a": "b"}, service_tier="auto").json()
    assert body["metadata"] == {"a": "b"}
    assert body["service_tier"] == "default"
