"""What the chat template is asked to render: messages, thinking, continued replies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.settings import Settings
from server.turn.served import Served
from tests.fakes.fake_engine import FakeChat, fake_served
from tests.fakes.live_server import Live, live

USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


def last_request(server: Live) -> Any:
    assert server.engine.requests
    return server.engine.requests[-1]


def renders_of(served: Served) -> list[dict[str, Any]]:
    assert isinstance(served.chat, FakeChat)
    return served.chat.renders


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


def test_a_tool_may_have_returned_nothing() -> None:
    served = fake_served()
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = [USER, {"role": "assistant", "tool_calls": [call]}]
    with live(served=served) as server:
        for result in ({"content": None}, {"content": ""}, {}):
            assert server.chat(messages=[*asked, {"role": "tool", **result}]).status_code == 200


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
