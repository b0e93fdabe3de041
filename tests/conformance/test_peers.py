"""What two peers' own suites expect of a server, rewritten as data; ``peers.md`` says what is left out.

llama.cpp: ``tools/server/tests/unit``; vLLM: ``tests/entrypoints/openai``. Where a peer asserts its own
model's words or its own extra fields, the case asserts what both share with OpenAI.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from model.text.deltas import ContentDelta
from server.events import Failed, Progress
from server.settings import Settings
from tests.fakes.asking import joined
from tests.fakes.fake_engine import FakeEngine, replies
from tests.fakes.live_server import Live, error_of, live, live_demo

pytestmark = pytest.mark.conformance
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
SUM = [
    {"role": "system", "content": "you are a helpful assistant"},
    {"role": "user", "content": "what is 1+1?"},
]
HI = [{"role": "user", "content": "hello"}]


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def in_form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


TEST_TOOL = function("test", success={"type": "boolean", "const": True})
PYTHON_TOOL = function("python", code={"type": "string", "maxLength": 40})
WEATHER_TOOL = function("get_current_weather", location={"type": "string", "maxLength": 40})
CALC_TOOL = function("calculate", expression={"type": "string"})


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_demo(Settings(thinking=False)) as running:
        yield running


def ask(server: Live, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    response = server.http.post(path, json={"max_tokens": 8, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


def stream(server: Live, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = server.http.post(CHAT, json={"max_tokens": 8, "temperature": 0, **body, "stream": True})
    assert response.status_code == 200, response.text
    frames = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert frames.pop() == "[DONE]"
    return [json.loads(frame) for frame in frames]


REFUSED: list[tuple[str, str, Any, str | None]] = [
    # llama.cpp test_chat_completion: test_invalid_chat_completion_req
    ("llama.cpp, no messages", CHAT, {"messages": None}, "messages"),
    ("llama.cpp, messages a string", CHAT, {"messages": "string"}, "messages"),
    ("llama.cpp, a message a number", CHAT, {"messages": [123]}, "messages[0]"),
    ("llama.cpp, a message without a role", CHAT, {"messages": [{}]}, "messages[0].role"),
    ("llama.cpp, a role a number", CHAT, {"messages": [{"role": 123}]}, "messages[0]"),
    (
        "llama.cpp, content a number",
        CHAT,
        {"messages": [{"role": "system", "content": 123}]},
        "messages[0].content",
    ),
    (
        "llama.cpp, a second message that is none",
        CHAT,
        {"messages": [{"role": "system", "content": "test"}, {}]},
        "messages[1].role",
    ),
    # test_completion_with_response_format
    ("llama.cpp, a format of sound", CHAT, {"messages": HI, "response_format": {"type": "sound"}}, None),
    (
        "llama.cpp, a schema that is a number",
        CHAT,
        {
            "messages": HI,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": 123}},
        },
        "response_format.json_schema.schema",
    ),
    (
        "llama.cpp, a type that is none",
        CHAT,
        {
            "messages": HI,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "hiccup"}},
            },
        },
        None,
    ),
    # vLLM test_chat_error, test_completion_error
    (
        "vLLM, json_schema without one",
        CHAT,
        {"messages": HI, "response_format": {"type": "json_schema"}},
        "response_format.json_schema",
    ),
    ("vLLM, a negative token", TEXT, {"prompt": [-1], "max_tokens": 10}, None),
    ("vLLM, a negative token among prompts", TEXT, {"prompt": [[-1]], "max_tokens": 10}, None),
    # vLLM test_prompt_validation
    ("vLLM, a token beyond the vocabulary", TEXT, {"prompt": [999999], "max_tokens": 5}, None),
    ("vLLM, no prompt", TEXT, {"prompt": None, "max_tokens": 5}, "prompt"),
    # vLLM test_non_object_body_validation
    ("vLLM, a body that is a string", CHAT, "this is not valid json{{{", None),
    ("vLLM, a body that is a list", CHAT, ["not", "an", "object"], None),
    ("vLLM, a body that is a number", CHAT, 42, None),
    ("vLLM, a body that is null", CHAT, None, None),
    # vLLM test_tool_choice_null
    (
        "vLLM, a choice of nothing known",
        CHAT,
        {"messages": HI, "tools": [TEST_TOOL], "tool_choice": "bogus"},
        "tool_choice",
    ),
    # vLLM test_chat_logit_bias_validation
    ("vLLM, a bias of no token", CHAT, {"messages": HI, "logit_bias": {"not_a_token_id": 50}}, None),
    (
        "vLLM, a bias that is no number",
        CHAT,
        {"messages": HI, "logit_bias": {"1": "not_a_number"}},
        "logit_bias.1",
    ),
    # vLLM test_chat
    (
        "vLLM, 21 alternatives",
        CHAT,
        {"messages": SUM, "logprobs": True, "top_logprobs": 21, "stream": True},
        "top_logprobs",
    ),
    ("vLLM, 30 alternatives", CHAT, {"messages": SUM, "logprobs": True, "top_logprobs": 30}, "top_logprobs"),
    (
        "vLLM, stream options without a stream",
        CHAT,
        {"messages": SUM, "stream_options": {"include_usage": True}},
        "stream_options",
    ),
    # extensions of theirs that would change a reply here, and are refused by name
    ("llama.cpp, a grammar of GBNF", CHAT, {"messages": HI, "grammar": 'root ::= "a"'}, "grammar"),
    ("llama.cpp, a schema at the top", CHAT, {"messages": HI, "json_schema": {"const": "42"}}, "json_schema"),
    (
        "vLLM, log probabilities of the prompt",
        CHAT,
        {"messages": HI, "prompt_logprobs": 1},
        "prompt_logprobs",
    ),
]


@pytest.mark.parametrize(
    ("path", "body", "param"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_peers_refuse_is_refused(server: Live, path: str, body: Any, param: str | None) -> None:
    headers = {"Content-Type": "application/json"}
    response = server.http.post(path, content=json.dumps(body), headers=headers)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert param is None or error["param"] == param, error
    assert server.http.get("/health").status_code == 200


def test_a_chat_is_answered_whole(server: Live) -> None:
    told = ask(server, {"messages": BOOK})
    assert "cmpl" in told["id"]
    usage, choice = told["usage"], told["choices"][0]
    assert usage["completion_tokens"] == 8 or choice["finish_reason"] == "stop"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert choice["message"]["role"] == "assistant"
    assert choice["logprobs"] is None


def test_parts_of_a_text_are_that_text(server: Live) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " the best book"}]
    whole, split = (
        ask(server, {"messages": [BOOK[0], {"role": "user", "content": content}]})
        for content in (BOOK[1]["content"], parts)
    )
    assert whole["usage"]["prompt_tokens"] == split["usage"]["prompt_tokens"]
    assert whole["choices"][0]["message"] == split["choices"][0]["message"]


def test_a_chat_is_answered_in_a_stream_that_says_the_same(server: Live) -> None:
    chunks = stream(server, {"messages": BOOK, "stream_options": {"include_usage": True}})
    *pieces, counts = chunks
    assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in pieces[1:])
    assert len({chunk["id"] for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in pieces]
    assert reasons.count(None) == len(reasons) - 1
    assert "content" not in pieces[-1]["choices"][0]["delta"]
    whole = ask(server, {"messages": BOOK})
    assert joined(pieces, "content") == whole["choices"][0]["message"]["content"]
    assert reasons[-1] == whole["choices"][0]["finish_reason"]
    assert counts["choices"] == []
    assert counts["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "prefill", ["Whill", [{"type": "text", "text": "Wh"}, {"type": "text", "text": "ill"}]]
)
def test_an_assistants_last_message_is_gone_on_with(server: Live, prefill: Any) -> None:
    told = ask(server, {"messages": [*BOOK, {"role": "assistant", "content": prefill}]})
    plain = ask(server, {"messages": [*BOOK, {"role": "assistant", "content": "Whill"}]})
    assert told["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert told["choices"][0]["message"] == plain["choices"][0]["message"]


def test_a_schema_and_an_object_are_kept_to(server: Live) -> None:
    told = ask(server, {"messages": BOOK, "response_format": in_form({"const": "foooooo"}), "max_tokens": 40})
    assert json.loads(told["choices"][0]["message"]["content"]) == "foooooo"
    told = ask(server, {"messages": BOOK, "response_format": {"type": "json_object"}})
    assert told["choices"][0]["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize("n_top", [0, 5, 10])
def test_log_probabilities_join_to_the_text(server: Live, n_top: int) -> None:
    body = {"messages": BOOK, "logprobs": True, "top_logprobs": n_top}
    choice = ask(server, body)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    for entry in entries:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == n_top
    told = [chunk["choices"][0]["logprobs"] for chunk in stream(server, body)]
    assert [entry for logprobs in told if logprobs for entry in logprobs["content"]] == entries


def test_biases_keep_tokens_out_and_name_what_is_beyond(server: Live) -> None:
    text = ask(server, {"messages": BOOK, "max_tokens": 24})["choices"][0]["message"]["content"]
    used = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    bias = {str(token): -100 for token in used}
    other = ask(server, {"messages": BOOK, "max_tokens": 24, "logit_bias": bias})
    again = server.http.post("/tokenize", json={"prompt": other["choices"][0]["message"]["content"] or ""})
    assert not set(again.json()["tokens"]) & set(used)
    size = server.gateway.served.info.vocab_size
    ask(server, {"messages": HI, "logit_bias": {str(size - 1): 1.0}})
    response = server.http.post(CHAT, json={"messages": HI, "logit_bias": {str(size + 1): 1.0}})
    assert response.status_code == 400
    assert str(size + 1) in error_of(response)["message"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_prompt_beyond_the_context_is_refused_whole_and_streamed(server: Live, streams: bool) -> None:
    response = server.http.post(CHAT, json={"messages": BOOK * 4000, "stream": streams})
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert str(server.gateway.served.info.context_length) in error["message"]


def test_progress_is_told_where_it_is_asked_for(server: Live) -> None:
    messages = [{"role": "user", "content": "This is a test" * 10}]
    body = {"messages": messages, "return_progress": True, "prompt_cache_key": "progress"}
    for is_warm in (False, True):
        told = [chunk["prompt_progress"] for chunk in stream(server, body) if "prompt_progress" in chunk]
        assert told
        assert len({(one["total"], one["cache"]) for one in told}) == 1
        assert (told[0]["cache"] > 0) == is_warm
        done = [one["processed"] for one in told]
        assert done == sorted(done)
        assert done[-1] == told[-1]["total"]


def test_several_replies_are_several_choices(server: Live) -> None:
    told = ask(server, {"messages": BOOK, "n": 2, "temperature": 1})
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    assert all(choice["message"]["role"] == "assistant" for choice in told["choices"])


@pytest.mark.parametrize(
    ("tool", "argument"), [(TEST_TOOL, "success"), (PYTHON_TOOL, "code"), (WEATHER_TOOL, "location")]
)
@pytest.mark.parametrize("streams", [False, True])
def test_a_required_call_is_made(server: Live, tool: dict[str, Any], argument: str, streams: bool) -> None:
    body = {
        "messages": [
            {"role": "system", "content": "You are a coding assistant."},
            {"role": "user", "content": "Write an example"},
        ],
        "tool_choice": "required",
        "tools": [tool],
        "parallel_tool_calls": False,
        "max_tokens": 256,
    }
    if streams:
        deltas = [chunk["choices"][0]["delta"] for chunk in stream(server, body)]
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
        name = pieces[0]["function"]["name"]
        arguments = "".join(piece["function"]["arguments"] for piece in pieces)
        assert not any(delta.get("content") for delta in deltas)
    else:
        message = ask(server, body)["choices"][0]["message"]
        (call,) = message["tool_calls"]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        assert not message["content"]
    assert name == tool["function"]["name"]
    assert set(json.loads(arguments)) == {argument}


@pytest.mark.parametrize(("tools", "choice"), [(None, None), ([PYTHON_TOOL], "none")])
def test_no_call_is_made_without_tools_or_a_choice(server: Live, tools: Any, choice: Any) -> None:
    message = ask(server, {"messages": HI, "tools": tools, "tool_choice": choice})["choices"][0]["message"]
    assert "tool_calls" not in message


def test_a_result_is_taken_with_its_tools_name(server: Live) -> None:
    call = {
        "id": "call_6789",
        "type": "function",
        "function": {"name": "calculate", "arguments": '{"expression":"sin(30 * pi / 180)"}'},
    }
    messages = [
        {
            "role": "user",
            "content": "What is the y coordinate of a point at 30 degrees?",
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "calculate", "content": "0.55644242476", "tool_call_id": "call_6789"},
    ]
    assert ask(server, {"messages": messages, "tools": [CALC_TOOL]})["choices"][0]["message"]


def test_a_null_choice_is_none_at_all(server: Live) -> None:
    absent, null = (
        ask(server, {"messages": HI, "tools": [WEATHER_TOOL], **choice})
        for choice in ({}, {"tool_choice": None})
    )
    assert absent["choices"] == null["choices"]
    assert absent["usage"]["prompt_tokens"] == null["usage"]["prompt_tokens"]


def test_what_was_read_before_is_counted_whole_and_streamed(server: Live) -> None:
    for streams, city in ((False, "France"), (True, "Germany")):
        messages = [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"What is the capital of {city}?"},
        ]
        body = {
            "messages": messages,
            "max_completion_tokens": 5,
            "max_tokens": None,
            "prompt_cache_key": city,
        }
        first = ask(server, body)["usage"]
        assert first["prompt_tokens_details"]["cached_tokens"] < first["prompt_tokens"] - 8
        if streams:
            second = stream(server, {**body, "stream_options": {"include_usage": True}})[-1]["usage"]
        else:
            second = ask(server, body)["usage"]
        assert (
            second["prompt_tokens_details"]["cached_tokens"] > first["prompt_tokens_details"]["cached_tokens"]
        )


def test_counts_come_with_every_piece_where_they_are_asked_for(server: Live) -> None:
    quiet = stream(server, {"messages": SUM, "stream_options": {"include_usage": False}})
    assert not any(chunk.get("usage") for chunk in quiet)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(server, {"messages": SUM, "min_tokens": 10, "max_tokens": 10, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 10
    for chunk in chunks:
        usage = chunk["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_fault_of_the_engine_is_a_500_and_ends_a_stream_properly(path: str) -> None:
    script = replies(Progress(0, (ContentDelta("Hello"),)), Failed("It broke.", kind="internal"))
    asked = {"messages": HI} if path == CHAT else {"prompt": "hello"}
    with live(FakeEngine(script)) as server:
        assert server.http.post(path, json=asked).status_code == 500
        frames = server.http.post(path, json={**asked, "stream": True}).text.split("\n\n")
    assert "error" in json.loads(frames[-3].removeprefix("data: "))
    assert frames[-2] == "data: [DONE]"


def test_keys_are_asked_for_and_taken_from_either_header() -> None:
    with live(settings=Settings(api_keys=("sk-this-is-the-secret-key",))) as server:
        assert server.http.get("/health", headers={"Authorization": ""}).status_code == 200
        for wrong in ("", "Bearer invalid-key"):
            response = server.http.post(TEXT, json={"prompt": "I believe"}, headers={"Authorization": wrong})
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"
        key = {"Authorization": "", "X-Api-Key": "sk-this-is-the-secret-key"}
        assert server.http.post(TEXT, json={"prompt": "I believe"}, headers=key).status_code == 200
        assert server.http.post(TEXT, json={"prompt": "I believe"}).status_code == 200
