"""A turn is no dialect's: errors are renamed, frames may have names, replies are put together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from model.errors import InputError
from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import Finished, Progress
from server.http.stream import EventStream, Frame
from server.settings import Settings
from server.turn.compose import compose, with_grammar
from server.turn.reply import Replies
from server.turn.turn import ResponseFormat, Thinking, ToolChoice, Turn, renamed
from tests.fakes.fake_engine import FakeChat, fake_served

HI = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("param", "told"),
    [
        ("messages[1].content", "input[0].content"),
        ("messages[10].content", "messages[10].content"),
        ("messages[0]", "instructions"),
        ("response_format", "text.format"),
        ("response_formats", "response_formats"),
    ],
)
def test_an_error_names_the_field_as_the_dialect_does(param: str, told: str) -> None:
    names = {"messages[0]": "instructions", "messages[1]": "input[0]", "response_format": "text.format"}
    error = renamed(InputError(f"'{param}' is wrong.", param=param, code="c"), names)
    assert (error.message, error.param, error.code) == (f"'{told}' is wrong.", told, "c")


def test_composing_raises_the_dialects_names() -> None:
    turn = Turn(
        id="t",
        messages=[HI],
        tools=[TOOL],
        tool_choice=ToolChoice(mode="required", names=("f", "g")),
        names={"tool_choice.names[1]": "tool_choice.name"},
    )
    with pytest.raises(InputError, match=r"'tool_choice.name' names 'g'") as caught:
        compose(turn, fake_served(), Settings())
    assert caught.value.param == "tool_choice.name"


def test_a_turn_says_in_any_way_whether_to_think() -> None:
    for thinking, told in (
        (Thinking(enabled=True), True),
        (Thinking(enabled=False, effort="high"), False),
        (Thinking(effort="none"), False),
        (Thinking(effort="low"), True),
        (Thinking(), None),
    ):
        served = fake_served()
        compose(Turn(id="t", messages=[HI], thinking=thinking), served, Settings())
        assert isinstance(served.chat, FakeChat)
        assert served.chat.renders[-1]["template_kwargs"].get("enable_thinking") is told


def test_replies_are_put_together_from_events() -> None:
    replies = Replies(2)
    for event in (
        Progress(0, (ReasoningDelta("Hm"), ContentDelta("Yes"))),
        Progress(
            1, (ToolCallStart(0, "call_1", "f"), ToolCallArguments(0, '{"a":'), ToolCallArguments(0, "1}"))
        ),
        Finished(1, "tool_calls", n_tokens=3, n_reasoning_tokens=0),
        Finished(0, "stop", n_tokens=3, n_reasoning_tokens=1),
    ):
        replies.take_in(event)
    assert replies.is_whole
    assert [end.index for end in replies.ends] == [0, 1]
    assert replies[0].message() == {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert replies[1].message()["tool_calls"] == [call]


def test_a_frame_has_a_name_where_the_dialect_gives_one() -> None:
    assert Frame({"a": "é"}).encode() == 'data: {"a":"é"}\n\n'.encode()
    assert Frame({"a": 1}, "ping").encode() == b'event: ping\ndata: {"a":1}\n\n'


def test_h5_what_clients_take_for_a_line_end_is_escaped() -> None:
    told = Frame({"a": "1\u2028 2\u2029 3\x85"}).encode().decode()
    assert told == 'data: {"a":"1\\u2028 2\\u2029 3\\u0085"}\n\n'
    assert len(told.splitlines()) == 2


class _Manners:
    """Streams that end without a mark and tell errors by name."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'
    last = b""

    def failure(self, error: Exception) -> list[Frame]:
        return [Frame({"message": str(error)}, "error")]


def test_a_stream_keeps_alive_fails_and_ends_as_its_dialect_does() -> None:
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        pinged = asyncio.Event()

        async def frames() -> AsyncGenerator[Frame, None]:
            await pinged.wait()
            yield Frame({"n": 1}, "delta")
            raise InputError("oh")

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body") == _Manners.keep_alive:
                pinged.set()

        async def receive() -> Any:
            await asyncio.Event().wait()

        stream = EventStream(frames(), _Manners(), headers=dict, keep_alive_s=0.001, stall_s=9)
        await stream({"type": "http"}, receive, send)

    asyncio.run(run())
    start, *bodies = sent
    assert start["status"] == 200
    told = [body["body"] for body in bodies if body["body"] != _Manners.keep_alive]
    assert len(told) < len(bodies)
    assert told == [
        b'event: delta\ndata: {"n":1}\n\n',
        b'event: error\ndata: {"message":"oh"}\n\n',
        b"",
    ]
    assert [body["more_body"] for body in bodies] == [True] * (len(bodies) - 1) + [False]


OBJECT = ResponseFormat(schema={"type": "object"})


def test_t5_json_cannot_be_asked_of_a_reply_that_is_begun() -> None:
    turn = Turn(id="t", messages=[HI, {"role": "assistant", "content": '{"'}], response_format=OBJECT)
    with pytest.raises(InputError) as caught:
        compose(turn, fake_served(), Settings())
    assert caught.value.param == "messages[1]"
    begun = [HI, {"role": "assistant", "content": "", "reasoning_content": "so"}]
    assert compose(Turn(id="t", messages=begun, response_format=OBJECT), fake_served(), Settings())


@pytest.mark.parametrize("mode", ["auto", "required", "none"])
def test_s4_the_schema_of_every_tool_is_checked_whether_or_not_it_is_enforced(mode: Any) -> None:
    tools = [TOOL, {"type": "function", "function": {"name": "g", "parameters": {"required": True}}}]
    turn = Turn(id="t", messages=[HI], tools=tools, tool_choice=ToolChoice(mode=mode))
    with pytest.raises(InputError) as caught:
        compose(turn, fake_served(), Settings())
    assert caught.value.param == "tools[1].function.parameters.required"
    assert caught.value.code == "invalid_schema"


def test_s1_of_a_chosen_tool_that_is_strict_the_place_in_the_request_is_told() -> None:
    tools = [TOOL, _strict_tool("g", {"type": "array", "uniqueItems": True})]
    choice = ToolChoice(mode="required", names=("g",))
    asked = compose(Turn(id="t", messages=[HI], tools=tools, tool_choice=choice), fake_served(), Settings())
    with pytest.raises(InputError) as caught:
        with_grammar(asked, fake_served())
    assert caught.value.param == "tools[1].function.parameters.properties.a.uniqueItems"


def _strict_tool(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": schema}}
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


PERSON = ResponseFormat(
    schema={"type": "object", "properties": {"name": {"type": "string", "description": "in full"}}},
    description="a person",
)


def _note(wanted: ResponseFormat, text: str = "Hi", **settings: Any) -> str | None:
    chat = FakeChat()
    turn = Turn(id="t", messages=[{"role": "user", "content": text}], response_format=wanted)
    compose(turn, replace(fake_served(), chat=chat), Settings(**settings))
    note: str | None = chat.renders[-1]["note"]
    return note


def test_s5_the_model_is_shown_the_schema_with_its_descriptions() -> None:
    note = _note(PERSON)
    assert note is not None
    assert "in full" in note
    assert "a person" in note


def test_s5_a_schema_that_the_text_holds_or_that_says_nothing_is_not_shown() -> None:
    assert _note(PERSON, f"Like {json.dumps(PERSON.schema, indent=4)}.") is None
    assert _note(OBJECT) is None
    assert _note(PERSON, show_schemas=False) is None


@pytest.mark.parametrize(("max_tokens", "is_bounded"), [(None, True), (9, False)])
def test_s5_strings_are_bounded_where_the_reply_is_not(max_tokens: int | None, is_bounded: bool) -> None:
    turn = Turn(
        id="t",
        messages=[HI],
        response_format=ResponseFormat(schema={"type": "string"}),
        max_tokens=max_tokens,
    )
    asked = with_grammar(compose(turn, fake_served(), Settings()), fake_served())
    assert ("maxLength" in str(asked.generation.reply.grammar)) == is_bounded
