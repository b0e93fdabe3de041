"""This dialect from HTTP to the demo model: forced calls, grammars, schemas, and Open Responses' cases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from server.settings import Settings
from tests.fakes.live_server import Live, live_demo
from tests.responses.kit import refusal, respond, stream

pytestmark = pytest.mark.slow
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "maxLength": 20}},
        "required": ["location"],
    },
}
LARK = """start: begin line+ end
begin: "*** Begin" LF
line: /[a-z ]{1,8}/ LF
end: "*** End"
%import common.LF
"""
SHORT = {"max_output_tokens": 200, "temperature": 0}
ASK = {"input": "What is the weather like in Rome?", **SHORT}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_demo(Settings(thinking=False)) as running:
        yield running


def custom(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "edit", "format": form}


@pytest.mark.parametrize(
    ("syntax", "definition", "pattern"),
    [
        ("regex", "(red|green)-[0-9]{3}", r"(red|green)-[0-9]{3}"),
        ("lark", LARK, r"\*\*\* Begin\n([a-z ]{1,8}\n)+\*\*\* End"),
    ],
)
def test_a_custom_tools_text_keeps_to_its_grammar(
    server: Live, syntax: str, definition: str, pattern: str
) -> None:
    tools = [custom(syntax, definition), WEATHER]
    asked = {**ASK, "tools": tools, "tool_choice": {"type": "custom", "name": "edit"}}
    told = stream(server, asked)[-1]["response"]
    (call,) = told["output"]
    assert call["type"] == "custom_tool_call"
    if told["status"] == "completed":
        assert re.fullmatch(pattern, call["input"])
    assert respond(server, asked)["output"][0]["input"] == call["input"]
    assert syntax == "lark" or told["status"] == "completed"


@pytest.mark.parametrize(("syntax", "definition"), [("lark", "start: ("), ("regex", "("), ("lark", "x: y")])
def test_a_grammar_that_is_none_is_refused_by_the_tools_place(
    server: Live, syntax: str, definition: str
) -> None:
    error = refusal(server, {**ASK, "tools": [WEATHER, custom(syntax, definition)]})
    assert error["param"].startswith("tools[1]"), error
    assert len(error["message"]) < 500


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_call_that_must_be_made_is_made_and_its_result_is_taken(server: Live, choice: Any) -> None:
    first = respond(server, {**ASK, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False})
    (call,) = first["output"]
    assert set(json.loads(call["arguments"])) == {"location"}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    second = respond(
        server,
        {**SHORT, "input": [output], "previous_response_id": first["id"], "tools": [WEATHER]},
    )
    assert second["output"]
    n_new = second["usage"]["input_tokens"] - first["usage"]["input_tokens"]
    assert second["crossturn"]["prefilled_tokens"] <= n_new + 32


def test_a_schema_is_kept_to(server: Live) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": False}
    told = respond(server, {**ASK, "text": {"format": form}})
    assert json.loads(told["output"][0]["content"][0]["text"])["n"] in (1, 22)


def test_two_forks_of_one_response_are_those_of_cold_runs(server: Live) -> None:
    first = respond(server, {**ASK, "input": "Name a colour."})
    replies = {}
    for question in ("And a number?", "And an animal?"):
        warm = respond(server, {**SHORT, "input": question, "previous_response_id": first["id"]})
        assert warm["crossturn"]["reused_tokens"] > 0
        replies[question] = warm["output"][0]["content"][0]["text"]
    for question, text in replies.items():
        cold = respond(
            server,
            {
                **SHORT,
                "input": [
                    {"role": "user", "content": "Name a colour."},
                    *first["output"],
                    {"role": "user", "content": question},
                ],
                "prompt_cache_key": f"cold {question}",
                "store": False,
            },
        )
        assert cold["output"][0]["content"][0]["text"] == text


# Open Responses' compliance cases (github.com/openresponses/openresponses): requests, and what must hold.
IMAGE = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


def user(content: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content}


COMPLETED: dict[str, list[dict[str, Any]]] = {
    "basic": [user("Say hello in exactly 3 words.")],
    "system prompt": [
        {"type": "message", "role": "system", "content": "You are a pirate. Always respond in pirate speak."},
        user("Say hello."),
    ],
    "several turns": [
        user("My name is Alice."),
        {"type": "message", "role": "assistant", "content": "Hello Alice! How can I help you today?"},
        user("What is my name?"),
    ],
}
REQUIRED = (
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "output"),
    *("error", "previous_response_id", "instructions", "tools", "tool_choice", "truncation", "text"),
    *("parallel_tool_calls", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "usage"),
    *("temperature", "reasoning", "max_output_tokens", "max_tool_calls", "store", "background", "user"),
    *("service_tier", "metadata", "safety_identifier", "prompt_cache_key"),
)
NUMBERS = ("top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "created_at")


def complies(told: dict[str, Any]) -> None:
    """What Open Responses requires of every response."""
    assert set(REQUIRED) <= set(told)
    assert all(isinstance(told[name], int | float) for name in NUMBERS)
    assert isinstance(told["created_at"], int)
    assert isinstance(told["metadata"], dict)
    for tool in told["tools"]:
        assert {"type", "name", "description", "parameters", "strict"} <= set(tool)


@pytest.mark.parametrize("case", COMPLETED)
def test_open_responses_whole(server: Live, case: str) -> None:
    told = respond(server, {"input": COMPLETED[case]})
    complies(told)
    assert told["status"] == "completed"
    assert told["output"]


def test_open_responses_streamed(server: Live) -> None:
    events = stream(server, {"input": [user("Count from 1 to 5.")]})
    complies(events[-1]["response"])
    assert events[-1]["type"] == "response.completed"
    assert not any("reasoning" in event["type"] for event in events)


def test_open_responses_calls_whole_and_streamed(server: Live) -> None:
    # The demo model would rather answer: the call is asked for.
    asked = {
        "input": [user("What's the weather like in San Francisco?")],
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": 0,
    }
    told, events = respond(server, asked), stream(server, asked)
    complies(told)
    assert "function_call" in [item["type"] for item in told["output"]]
    kinds = [event["type"] for event in events]
    for step in ("delta", "done"):
        assert f"response.function_call_arguments.{step}" in kinds
    items = [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"]
    assert "function_call" in items


def test_open_responses_image_needs_a_model_that_sees(server: Live) -> None:
    parts = [
        {"type": "input_text", "text": "What do you see in this image? Answer in one sentence."},
        {"type": "input_image", "image_url": IMAGE},
    ]
    assert refusal(server, {"input": [user(parts)]})["param"].startswith("input[0].content[1]")
