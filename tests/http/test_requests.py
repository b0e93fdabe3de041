"""What a chat request may say, and how it is refused otherwise. Rows of the case list are named by id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from model.sampling import SamplingParams
from server.events import Finished, Prefilling
from server.openai.schema import ChatRequest
from server.settings import Settings
from tests.fakes.fake_engine import fake_served, replies, says
from tests.fakes.live_server import ASK, Live, error_of, live

USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(settings=Settings(idle_prefill=False)) as running:
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
        ({"stop": ["a"] * 65}, "stop"),
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
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"service_tier": 1}, "service_tier"),
        ({"functions": []}, "functions"),
        ({"temprature": 1}, "temprature"),
        ({"": 1}, '""'),
        ({"reasoning_effort": "lots"}, "reasoning_effort"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"metadata": []}, "metadata"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"reasoning": {"colour": 1}}, "reasoning.colour"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
    ],
)
def test_f05_a_value_out_of_range_is_refused_by_name(
    server: Live, fields: dict[str, Any], param: str
) -> None:
    error = server.refusal(**fields)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", ["", "{", "nonsense", "[1]", '"text"', "null"])
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
    assert "at most 64 items" in server.refusal(stop=["a"] * 65)["message"]
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
    metadata = {"a": "b", "n": 1, "deep": {"x": [None]}}
    body = server.chat(metadata=metadata, service_tier="flex").json()
    assert body["metadata"] == {
        "a": "b",
        "n": "1",
        "deep": '{"x": [null]}',
    }
    assert body["service_tier"] == "default"


def spec_fields() -> list[str]:
    """Every field of OpenAI's chat requests, those that nothing here knows too."""
    return [
        *("audio", "functions", "function_call", "prediction", "web_search_options", "moderation"),
        *("prompt_cache_options", "prompt_cache_retention", "store", "verbosity", "surprise"),
    ]


def test_h1_null_is_absent_for_every_field_of_openai_at_any_depth(server: Live) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "x": None}}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "annotations": None, "x": None}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": calls,
            **dict.fromkeys(("audio", "function_call", "refusal", "annotations", "parsed", "x")),
        },
        {"role": "tool", "tool_call_id": "c", "content": "1", "x": None},
    ]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}, "x": None}, "x": None}
    response = server.chat(
        **dict.fromkeys(spec_fields()),
        messages=messages,
        tools=[tool],
        response_format={"type": "text", "json_schema": None},
        stream=True,
        stream_options={"include_usage": None, "x": None},
    )
    assert response.status_code == 200, response.text
    rendered = server.gateway.served.chat.renders[-1]  # type: ignore[attr-defined]
    assert rendered["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert "'x'" not in str(rendered["messages"])


def test_h1_what_asks_for_nothing_is_taken_and_handed_to_nobody(server: Live) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "s", "cache_control": mark}]},
        {"role": "user", "content": "u", "id": "msg_1", "cache_control": mark},
        {
            "role": "assistant",
            "content": "a",
            "id": "msg_2",
            "provider_specific_fields": {"x": 1},
            "reasoning_details": [{"type": "reasoning.text", "text": "t"}],
            "thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}],
            "annotations": [{"type": "url_citation"}],
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{}"},
                    "provider_specific_fields": {},
                    "extra_content": {"google": {}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "r", "is_error": True, "cache_control": mark},
    ]
    response = server.chat(
        messages=messages,
        tools=[{"type": "function", "function": {"name": "f"}, "cache_control": mark}],
        store=True,
        verbosity="low",
        service_tier="priority",
        prompt_cache_retention="24h",
        cache_prompt=True,
        skip_special_tokens=True,
        stop=[str(n) for n in range(64)],
        max_tokens=-1,
    )
    assert response.status_code == 200, response.text
    rendered = server.gateway.served.chat.renders[-1]  # type: ignore[attr-defined]
    assert rendered["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    assert rendered["tools"] == [{"type": "function", "function": {"name": "f"}}]
    request = last_request(server)
    assert request.max_tokens == 4096 - len(request.prompt.ids)


@pytest.mark.parametrize(
    ("reasoning", "thinks", "budget"),
    [
        ({"effort": "none"}, False, None),
        ({"effort": "low"}, True, 1024),
        ({"enabled": True}, True, None),
        ({"max_tokens": 7}, None, 7),
    ],
)
def test_h1_reasoning_is_the_same_as_our_own_fields(
    server: Live, reasoning: dict[str, Any], thinks: bool | None, budget: int | None
) -> None:
    assert server.chat(reasoning=reasoning).status_code == 200
    rendered = server.gateway.served.chat.renders[-1]  # type: ignore[attr-defined]
    assert rendered["template_kwargs"].get("enable_thinking") is thinks
    assert last_request(server).reply.max_thought_tokens == budget


def test_h1_switches_of_any_template_are_passed_on(server: Live) -> None:
    assert server.chat(chat_template_kwargs={"colour": "red", "none": None}).status_code == 200
    rendered = server.gateway.served.chat.renders[-1]  # type: ignore[attr-defined]
    assert rendered["template_kwargs"] == {"colour": "red"}


def test_h1_lengths_reach_the_engine(server: Live) -> None:
    server.chat(min_tokens=3, ignore_eos=True)
    reply = last_request(server).reply
    assert (reply.min_tokens, reply.ignore_eos) == (3, True)
    server.http.post("/v1/completions", json={"prompt": "a", "min_tokens": 3, "ignore_eos": True})
    reply = last_request(server).reply
    assert (reply.min_tokens, reply.ignore_eos) == (3, True)


def test_a_stream_tells_how_far_its_prompt_is_read_when_asked(server: Live) -> None:
    server.engine.script = replies(
        Prefilling(n_prompt=9000, n_reused=1000, n_done=5000, elapsed_s=1.25),
        Finished(0, "stop", n_tokens=1, n_reasoning_tokens=0),
    )
    response = server.chat(stream=True, return_progress=True)
    assert last_request(server).tells_prefill
    chunks = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
    (told,) = (chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk)
    assert told == {"total": 9000, "cache": 1000, "processed": 5000, "time_ms": 1250}
    server.engine.script = says("Hello", " there")
    server.chat(stream=True)
    assert not last_request(server).tells_prefill


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_h1_every_chunk_counts_the_tokens_so_far(server: Live, path: str) -> None:
    asked = {**ASK} if "chat" in path else {"prompt": "Hi"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = server.http.post(path, json={**asked, "stream": True, "stream_options": options})
    frames = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: {")]
    counts = [json.loads(frame)["usage"]["completion_tokens"] for frame in frames]
    assert counts[-2:] == [3, 3]
    assert counts == sorted(counts)
    assert {json.loads(frame)["usage"]["prompt_tokens"] for frame in frames[1:]} == {
        json.loads(frames[-1])["usage"]["prompt_tokens"]
    }


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("a \\ud83d b", "a \ufffd b"),
        ("\\ude00\\ud83d", "\ufffd\ufffd"),
        ("\\ud83d\\ude00 \\ud83d", "\U0001f600 \ufffd"),
        ("\\\\ud83d \\ud83d", "\\ud83d \ufffd"),
        ("\\ud83d\\\\ude00", "\ufffd\\ude00"),
    ],
)
def test_h2_half_a_character_is_read_as_the_replacement_character(server: Live, sent: str, read: str) -> None:
    body = json.dumps({"messages": [{**USER, "content": "SENT"}]}).replace("SENT", sent)
    headers = {"Content-Type": "application/json"}
    response = server.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 200, response.text
    assert server.gateway.served.chat.renders[-1]["messages"][0]["content"] == read  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "mood": 1}]}]},
            "messages[0].content[0].mood",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "text2": 1}]}]},
            "messages[0].content[0].text2",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "", "y": 1}]}]},
            "messages[0].content[0].y",
        ),
        (
            {"messages": [{"role": "user", "content": "Hi", "user": 1}]},
            "messages[0].user",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}, "mood": 1}},
            "tool_choice.mood",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f", "mood": 1}}},
            "tool_choice.function.mood",
        ),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "x": 1, "tools": []},
                }
            },
            "tool_choice.allowed_tools",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}, "mood": 1}},
            "response_format.mood",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "mood": 1}}},
            "response_format.json_schema.mood",
        ),
        ({"response_format": {"type": "text", "text": 1}}, "response_format.text"),
        ({"tools": [{"type": "function", "function": {"name": "f"}, "mood": 1}]}, "tools[0].mood"),
        ({"tools": [{"type": "function", "function": {"name": "f", "mood": 1}}]}, "tools[0].function.mood"),
    ],
)
def test_h3_the_key_that_is_one_too_many_is_named(server: Live, fields: dict[str, Any], param: str) -> None:
    assert server.refusal(**fields)["param"].startswith(param)


@pytest.mark.parametrize(
    "content", ["def f():", [{"type": "text", "text": "def "}, {"type": "text", "text": "f():"}]]
)
def test_what_a_client_foretells_reaches_the_engine(server: Live, content: object) -> None:
    assert server.chat(prediction={"type": "content", "content": content}).status_code == 200
    prediction = last_request(server).prediction
    assert prediction is not None
    assert bytes(prediction.tolist()) == b"def f():"
    server.chat(prediction=None)
    assert last_request(server).prediction is None


def test_guesses_that_came_true_and_those_that_did_not_are_counted(server: Live) -> None:
    end = Finished(0, "stop", n_tokens=9, n_reasoning_tokens=0, n_drafted=7, n_accepted=5)
    server.engine.script = replies(end)
    details = server.chat().json()["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (5, 2)
