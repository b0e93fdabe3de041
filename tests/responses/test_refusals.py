"""What is refused names its field; what asks for nothing here is taken; no body makes the server fail."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_engine import FakeEngine, fake_served
from tests.fakes.live_server import Live, error_of, live
from tests.responses.kit import PATH, refusal, respond

CLIENTS = Path(__file__).parents[1] / "clients"
USER = {"role": "user", "content": "Hi"}
FUNCTION = {"type": "function", "name": "f"}
NAMED = {"type": "custom", "name": "p"}
TEXT_PART = {"type": "input_text", "text": ""}
IMAGE_PART = {"type": "input_image", "image_url": "data:,", "detail": "low"}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(FakeEngine(), fake_served("demo", context_length=1 << 20)) as running:
        yield running


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"input": [{}]}, "input[0]"),
        ({"input": [{"role": "robot", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{**USER, "surprise": 1}]}, "input[0].surprise"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [USER, {"type": "web_search_call", "id": "ws_1"}]}, "input[1]"),
        ({"input": [USER, {"type": "function_call", "call_id": "c", "name": "f"}]}, "input[1].arguments"),
        ({"input": [USER, {"type": "compaction", "encrypted_content": "x"}]}, "input[1]"),
        ({"input": "Hi", "tools": [{"type": "mcp"}]}, "tools[0]"),
        ({"input": "Hi", "tools": [{"type": "image_generation"}]}, "tools[0]"),
        ({"input": "Hi", "tools": [{"type": "web_search"}]}, "tools[0]"),
        (
            {"input": "Hi", "tools": [{"type": "web_search", "external_web_access": True}]},
            "tools[0]",
        ),
        ({"input": "Hi", "tools": [{"type": "tool_search"}]}, "tools[0].execution"),
        ({"input": "Hi", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "Hi", "tools": [FUNCTION, FUNCTION | {"description": "d"}]}, "tools[1].name"),
        ({"input": "Hi", "tools": [FUNCTION], "tool_choice": "f"}, "tool_choice"),
        ({"input": "Hi", "tools": [FUNCTION], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": "Hi", "tool_choice": "required"}, "tool_choice"),
        ({"input": "Hi", "background": True}, "background"),
        ({"input": "Hi", "conversation": "conv_1"}, "conversation"),
        ({"input": "Hi", "prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": "Hi", "truncation": "auto"}, "truncation"),
        ({"input": "Hi", "temperature": 3}, "temperature"),
        ({"input": "Hi", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "Hi", "reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"input": "Hi", "reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"input": "Hi", "reasoning": {"effort": "none"}, "enable_thinking": True}, "enable_thinking"),
        ({"input": "Hi", "text": {"format": {"type": "xml"}}}, "text.format"),
        ({"input": "Hi", "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        (
            {"input": "Hi", "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"input": "Hi", "surprise": 1}, "surprise"),
        ({"input": [USER, {"role": "user", "content": "unrenderable"}]}, "input[1].content"),
        ({"input": "unrenderable"}, "input.content"),
    ],
)
def test_what_is_refused_names_its_field(server: Live, body: dict[str, Any], param: str) -> None:
    error = refusal(server, body)
    assert error["param"] == param, error


@pytest.mark.parametrize("kind", ["mcp", "code_interpreter", "computer_use_preview", "local_shell"])
def test_a_hosted_tool_is_refused_by_name(server: Live, kind: str) -> None:
    assert kind in refusal(server, {"input": "Hi", "tools": [{"type": kind}]})["message"]


@pytest.mark.parametrize(
    "field",
    [
        {"client_metadata": {"a": {"b": 1}}},
        {"include": ["file_search_call.results", "something.new"]},
        {"max_tool_calls": 3},
        {"metadata": {"n": 1}},
        {"prompt_cache_options": {"mode": "implicit"}},
        {"prompt_cache_retention": "24h"},
        {"safety_identifier": "s"},
        {"service_tier": "flex"},
        {"stream_options": {"include_obfuscation": False}},
        {"text": {"verbosity": "low"}},
        {"truncation": "disabled"},
        {"user": "u"},
        {"background": False},
        {"context_management": []},
        {"tools": [{"type": "web_search", "external_web_access": False}]},
        {"tools": []},
        {"reasoning": {"mode": "standard", "context": "auto"}},
    ],
)
def test_what_asks_for_nothing_here_is_taken(server: Live, field: dict[str, Any]) -> None:
    assert respond(server, {"input": "Hi", **field})["status"] == "completed"


def test_null_is_absent(server: Live) -> None:
    document = server.http.get("/openapi.json").json()
    fields = document["components"]["schemas"]["ResponsesRequest"]["properties"]
    body: dict[str, Any] = dict.fromkeys(set(fields) - {"input", "model"})
    assert len(body) > 40
    assert respond(server, {**body, "input": "Hi"})["status"] == "completed"


def test_a_long_prompt_is_refused_in_the_words_by_which_clients_compact() -> None:
    with live(FakeEngine(), fake_served("demo", context_length=50)) as server:
        for stream in (False, True):
            error = refusal(server, {"input": "x" * 99, "stream": stream})
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "input"
            assert "maximum context length is 50 tokens" in error["message"]


def test_a_model_of_another_name_is_not_here(server: Live) -> None:
    assert refusal(server, {"model": "gpt-6", "input": "Hi"}, 404)["code"] == "model_not_found"


def seeds() -> list[dict[str, Any]]:
    """Bodies that real clients sent, and some that reach what theirs do not."""
    named = ("ai-sdk-1", "codex-openai-slug-1", "openai-agents-2", "openai-agents-3")
    bodies = [json.loads((CLIENTS / f"{name}.json").read_text())["body"] for name in named]
    for body in bodies:
        body["tools"] = body["tools"][:6]
        for item in body["input"]:
            if isinstance(item.get("content"), list):
                item["content"] = [{**part, "text": part["text"][:9]} for part in item["content"]]
    bodies.append(
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "data:,", "detail": "low"}],
                },
                {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
                {
                    "type": "custom_tool_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_text", "text": ""}],
                },
                {"type": "tool_search_call", "call_id": "d", "arguments": {}, "execution": "client"},
                {"type": "tool_search_output", "call_id": "d", "tools": [FUNCTION]},
            ],
            "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "p"}]}],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "custom", "name": "p"}],
            },
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
            "reasoning": {"effort": "low", "summary": "auto"},
            "previous_response_id": None,
            "include": ["message.output_text.logprobs"],
            "metadata": {"a": "b"},
        }
    )
    return bodies


ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1e300,
        2**70,
        "",
        "x",
        "\u2028",
        "function",
        "item_reference",
        "auto",
        "required",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        {"type": "function"},
        {"type": "message", "role": "user", "content": "x"},
        [None] * 3,
    ),
)


def fuzzed(body: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """``body`` with a few of its values changed, moved, doubled or gone."""
    body = copy.deepcopy(body)
    for _ in range(draw.choice((1, 1, 2, 4))):
        place: Any = body
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(place[key], dict | list) and draw.random() < 0.7:
                place = place[key]
                continue
            match draw.randrange(4):
                case 0:
                    del place[key]
                case 1:
                    place[key] = copy.deepcopy(place[draw.choice(keys)])
                case 2 if isinstance(place, dict):
                    place[draw.choice(("type", "id", "call_id", "name", "content", "odd", key))] = (
                        draw.choice(ODD)
                    )
                case _:
                    place[key] = draw.choice(ODD)
            break
    return body


def fuzz(server: Live, n_bodies: int) -> None:
    """Send as many bodies; each is answered, or refused in the API's shape by the field at fault."""
    draw, bodies = random.Random(11), seeds()
    seen: dict[int, int] = {}
    for n in range(n_bodies):
        body = fuzzed(bodies[n % len(bodies)], draw)
        where = f"{PATH}/input_tokens" if n % 7 == 0 else PATH
        response = server.http.post(where, json={**body, "model": "demo"})
        assert response.status_code in (200, 400, 404), (response.text, body)
        if response.status_code != 200:
            error = error_of(response)
            assert error["param"] or error["code"] == "invalid_json", (error, body)
        seen[response.status_code] = seen.get(response.status_code, 0) + 1
    assert seen[200] > n_bodies // 10
    assert seen[400] > n_bodies // 4


@pytest.mark.slow
def test_no_fuzzed_body_makes_the_server_fail(server: Live) -> None:
    fuzz(server, 300)  # tests/conformance/test_fuzzed.py sends more


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"input": "\xff"}', b'"x"', b"{" * 5000])
def test_what_is_no_json_object_is_refused(server: Live, body: bytes) -> None:
    response = server.http.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_json"
