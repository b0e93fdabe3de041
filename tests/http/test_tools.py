"""Tools and response formats of a chat request: what is shown, what is enforced, what comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import Finished, Progress
from tests.fakes.fake_engine import FakeChat, FakeEngine, fake_served, replies
from tests.fakes.live_server import Live, live
from tests.fakes.openai_types import check_chat, check_chunk


def tool(name: str, **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": name, "description": f"Does {name}.", "parameters": parameters, **fields}
    return {"type": "function", "function": function}


TOOLS = [tool("look"), tool("ask")]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}


@pytest.fixture
def server() -> Iterator[Live]:
    with live(served=fake_served()) as running:
        yield running


def shown_tools(server: Live) -> Any:
    chat = server.gateway.served.chat
    assert isinstance(chat, FakeChat)
    return chat.renders[-1]["tools"]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_tools_are_shown_and_their_calls_are_read(server: Live) -> None:
    server.chat(tools=TOOLS)
    assert json.dumps(shown_tools(server)) == json.dumps(TOOLS)
    reply = server.engine.requests[-1].reply
    assert list(reply.tools) == TOOLS
    assert reply.grammar is None


@pytest.mark.parametrize("fields", [{}, {"tools": None}, {"tools": []}, {"tools": [], "tool_choice": "none"}])
def test_c06_without_tools_nothing_is_shown_or_parsed(server: Live, fields: dict[str, Any]) -> None:
    assert server.chat(**fields).status_code == 200
    assert shown_tools(server) is None
    assert server.engine.requests[-1].reply.tools is None


def test_c02_tool_choice_none_shows_and_parses_nothing(server: Live) -> None:
    server.chat(tools=TOOLS, tool_choice="none")
    assert shown_tools(server) is None
    assert server.engine.requests[-1].reply.tools is None


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        named("ask"),
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("look")]}},
    ],
)
def test_c02_a_call_that_must_be_made_is_enforced_among_all_tools(server: Live, choice: Any) -> None:
    assert server.chat(tools=TOOLS, tool_choice=choice).status_code == 200
    assert shown_tools(server) == TOOLS
    assert server.engine.requests[-1].reply.grammar is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": named("fly")}, "tool_choice.function.name"),
        ({"tool_choice": named("fly")}, "tool_choice.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [tool("look"), tool("look")]}, "tools[1].function.name"),
        ({"tools": [tool("look up")]}, "tools[0].function.name"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [named("look"), named("fly")]},
                },
            },
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
    ],
)
def test_c02_a_choice_of_no_tool_is_refused_by_name(server: Live, fields: dict[str, Any], param: str) -> None:
    assert server.refusal(**fields)["param"] == param


@pytest.mark.parametrize(
    "fields",
    [{"parallel_tool_calls": False}, {"tools": [tool("look", strict=True)]}],
)
def test_calls_are_held_to_what_the_request_says_of_them(server: Live, fields: dict[str, Any]) -> None:
    server.chat(**{"tools": TOOLS, **fields})
    assert server.engine.requests[-1].reply.grammar is not None


@pytest.mark.parametrize("response_format", [{"type": "json_object"}, JSON_SCHEMA])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_d05_a_response_format_is_enforced_with_and_without_tools(
    server: Live, response_format: Any, tools: Any
) -> None:
    assert server.chat(response_format=response_format, tools=tools).status_code == 200
    assert server.engine.requests[-1].reply.grammar is not None


def test_plain_text_is_not_constrained(server: Live) -> None:
    server.chat(response_format={"type": "text"})
    assert server.engine.requests[-1].reply.grammar is None


def test_d05_a_schema_that_cannot_be_enforced_is_refused(server: Live) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "no such type"}}}
    error = server.refusal(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    )
    assert error["code"] == "invalid_schema"


CALLS = replies(
    Progress(0, (ReasoningDelta("I need two."),)),
    Progress(0, (ContentDelta("Let me look."),)),
    Progress(0, (ToolCallStart(0, "call_a", "look"),)),
    Progress(0, (ToolCallArguments(0, '{"city": '), ToolCallArguments(0, '"Köln"}'))),
    Progress(0, (ToolCallStart(1, "call_b", "ask"), ToolCallArguments(1, "{}"))),
    Finished(0, "tool_calls", 20, 4),
)


def test_c08_two_calls_come_with_their_index_id_and_name_first() -> None:
    with live(FakeEngine(CALLS)) as server:
        whole = check_chat(server.chat(tools=TOOLS).json())
        text = server.chat(tools=TOOLS, stream=True).text
    chunks = [check_chunk(json.loads(line[6:])) for line in text.split("\n\n") if line.startswith("data: {")]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    pieces = [call for delta in deltas for call in delta.tool_calls or ()]
    firsts = [call for call in pieces if call.id]
    assert [(call.index, call.id, call.type) for call in firsts] == [
        (0, "call_a", "function"),
        (1, "call_b", "function"),
    ]
    assert [call.function and call.function.name for call in firsts] == ["look", "ask"]
    message = whole.choices[0].message
    for index, call in enumerate(message.tool_calls or ()):
        assert call.type == "function"
        joined = "".join(
            piece.function.arguments or ""
            for piece in pieces
            if piece.index == index and piece.function is not None
        )
        assert joined == call.function.arguments
        json.loads(joined)
    assert "".join(delta.content or "" for delta in deltas) == message.content == "Let me look."
    assert whole.choices[0].finish_reason == "tool_calls"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "tool_calls"


def test_the_openai_package_accumulates_streamed_calls() -> None:
    with (
        live(FakeEngine(CALLS)) as server,
        server.openai.chat.completions.stream(
            model="demo", messages=[{"role": "user", "content": "Hi"}], tools=TOOLS
        ) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"city": "Köln"}', "{}"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "both"])
def test_d06_thoughts_are_sent_under_the_names_that_the_operator_chose(field: Any) -> None:
    from server.settings import Settings

    with live(FakeEngine(CALLS), settings=Settings(reasoning_field=field)) as server:
        message = server.chat().json()["choices"][0]["message"]
        text = server.chat(stream=True).text
    names = {"reasoning_content", "reasoning"} if field == "both" else {field}
    assert {name for name in ("reasoning_content", "reasoning") if name in message} == names
    assert {message[name] for name in names} == {"I need two."}
    for name in ("reasoning_content", "reasoning"):
        assert (f'"{name}":' in text) is (name in names)
