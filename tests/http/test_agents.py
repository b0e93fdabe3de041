"""The whole server, from HTTP to the demo model: calls, structured replies, an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.fakes.asking import QUESTION, ask, joined, message_of, stream
from tests.fakes.live_server import Live, live_demo

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
NEXT_FILE = {"B2": "T9", "K7": "B2", "T9": "M4", "M4": "R1"}
READ_FILE = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read the file.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
}


class Colour(BaseModel):
    name: Literal["red", "green"]
    warm: bool


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_demo() as running:
        yield running


def test_d05_a_strict_schema_is_matched_streamed_and_whole(server: Live) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"enum": [1, 22, 333]}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    fmt = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    options = {"response_format": fmt, "max_tokens": 200, "temperature": 0, "thinking_budget": 8}
    body = ask(server, QUESTION, **options)
    text = message_of(body)["content"]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert set(json.loads(text)) == {"city", "people"}
    assert joined(stream(server, QUESTION, **options), "content") == text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_c02_a_required_call_is_made_and_fits_its_schema(server: Live, choice: Any) -> None:
    options = {
        "tools": [WEATHER],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "enable_thinking": False,
        "max_tokens": 300,
        "temperature": 0,
    }
    body = ask(server, QUESTION, **options)
    (call,) = message_of(body)["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "get_weather"
    assert isinstance(arguments["city"], str)
    assert isinstance(arguments["days"], int)
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    chunks = stream(server, QUESTION, **options)
    pieces = [
        piece
        for chunk in chunks
        for choice in chunk["choices"]
        for piece in choice["delta"].get("tool_calls", ())
    ]
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "arguments", ["", "null", "[]", '{"city": "Par', '{"city": "Paris"}', {"city": "Paris"}]
)
def test_c01_any_arguments_in_history_are_answered(server: Live, arguments: Any) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }
    ask(
        server,
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        tools=[WEATHER],
        max_tokens=1,
    )


def test_the_openai_package_parses_structured_replies(server: Live) -> None:
    parsed = server.openai.chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": "Pick a colour."}],
        response_format=Colour,
        extra_body={"enable_thinking": False},
    )
    colour = parsed.choices[0].message.parsed
    assert isinstance(colour, Colour)
    assert colour.name in ("red", "green")


@pytest.mark.parametrize("streamed", [True, False])
def test_an_agent_of_five_tool_rounds_finds_the_right_answer(server: Live, streamed: bool) -> None:
    history: list[Any] = [
        {
            "role": "user",
            "content": "Start with K7 and follow the next with read_file until you find the code. "
            "What is the code?",
        }
    ]
    asked: list[str] = []
    n_prefilled: list[int] = []
    while len(asked) < 8:
        request = {
            "model": "demo",
            "messages": history,
            "tools": [READ_FILE],
            "temperature": 0,
            "extra_headers": {"X-Session-Id": f"agent-{streamed}"},
        }
        if streamed:
            with server.openai.chat.completions.stream(**request) as events:
                completion = events.get_final_completion()
        else:
            completion = server.openai.chat.completions.create(**request)
        message = completion.choices[0].message
        n_prefilled.append((completion.model_extra or {})["crossturn"]["prefilled_tokens"])
        history.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        assert completion.choices[0].finish_reason == "tool_calls"
        for call in message.tool_calls:
            name = json.loads(call.function.arguments)["name"]
            asked.append(name)
            result = {"next": NEXT_FILE[name]} if name in NEXT_FILE else {"code": 42}
            history.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    assert asked == ["K7", "B2", "T9", "M4", "R1"]
    assert "42" in (message.content or "")
    assert max(n_prefilled[1:]) < 80
