"""What is read between turns is what the client will send: with the reply's thought, or without it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from model.text.deltas import ContentDelta, ReasoningDelta
from server.events import Finished, Progress
from server.turn.reply import Reply, as_sent_back
from tests.fakes.fake_engine import FakeEngine, replies
from tests.fakes.live_server import live
from tests.fakes.measured import MeasuredTurn, measured_demo
from tests.fakes.scripted import xml_call

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "42"}


@pytest.mark.parametrize(
    ("history", "thinks"),
    [
        ([USER], True),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT], False),
        ([USER, {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [CALL]}, RESULT], True),
        ([USER, {"role": "assistant", "reasoning": "Hm.", "tool_calls": [CALL]}, RESULT], True),
        ([USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSo."}, USER], True),
        ([USER, {"role": "assistant", "reasoning_content": "Hm.", "content": "So."}, USER], True),
        (
            [
                {"role": "assistant", "reasoning_content": "Hm.", "content": "So."},
                {"role": "assistant", "content": "So."},
            ],
            False,
        ),
    ],
)
def test_a_client_that_sent_no_thought_back_will_send_none(
    history: list[dict[str, Any]], thinks: bool
) -> None:
    reply = Reply(thoughts=["Well."], contents=["Yes."])
    assert ("reasoning_content" in as_sent_back(reply, history)) == thinks


def test_the_form_without_a_thought_is_what_is_read_ahead() -> None:
    script = replies(
        Progress(0, (ReasoningDelta("Hm."),)), Progress(0, (ContentDelta("So."),)), Finished(0, "stop", 9, 3)
    )
    history = [USER, {"role": "assistant", "content": "Well."}, USER]
    with live(FakeEngine(script)) as server:
        server.chat(messages=history)
        assert server.engine.was_warmed.wait(10)
        rendered = server.gateway.served.chat.renders[-1]["messages"]  # type: ignore[attr-defined]
    assert rendered[-1] == {"role": "assistant", "content": "So."}


@pytest.mark.slow
@pytest.mark.parametrize("sends_thoughts", [False, True])
def test_each_call_of_a_loop_is_read_once(sends_thoughts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.turn.reply.LEAST_AHEAD", 1)  # what follows a call is short
    turns = loop(sends_thoughts)
    for turn in turns[2:]:
        assert turn.n_read <= 24, turns


def loop(sends_thoughts: bool) -> list[MeasuredTurn]:
    """A client's loop of five calls."""
    tool = {
        "type": "function",
        "function": {"name": "write", "parameters": {"properties": {"text": {"type": "string"}}}},
    }

    def write(prompt: str) -> str:
        n_results = prompt.count("<tool_response>")
        return "Let me write it.\n</think>\n\n" + xml_call("write", text=f"Part {n_results}: " + "word " * 20)

    quiet = threading.Event()
    messages: list[dict[str, Any]] = [USER]
    with measured_demo(write) as (server, turns):
        for _ in range(5):
            n_ahead = server.engine.stats().n_read_ahead_tokens
            reply = server.chat(messages=messages, tools=[tool], temperature=0).json()
            message = reply["choices"][0]["message"]
            (call,) = message["tool_calls"]
            if not sends_thoughts:
                message.pop("reasoning_content")
            messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "Done."}]
            while server.engine.stats().n_read_ahead_tokens == n_ahead and not quiet.wait(0.01):
                pass
    return turns
