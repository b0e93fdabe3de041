"""What agents do to a cache, over HTTP with the demo model: replies that fail, titles asked for beside,
memory agents, reminders that move."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cache.boundaries import FIRST_MARK
from server.settings import Settings
from tests.fakes.live_server import Live, live_demo

Message = dict[str, Any]

SYSTEM: Message = {"role": "system", "content": "You are a helpful agent. " + "Answer in one sentence. " * 40}
LONG = "The list of files is long and has many names in it. " * 40
"""What makes it matter whether a message is read again."""


@pytest.fixture
def server() -> Iterator[Live]:
    # Nothing is read between turns, so that every count is that of the turns themselves.
    with live_demo(Settings(idle_prefill=False)) as running:
        yield running


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def ask(server: Live, *messages: Message, session: str = "agent", **fields: Any) -> dict[str, Any]:
    """The reply, with its plan."""
    response = server.http.post(
        "/v1/chat/completions",
        json={"messages": list(messages), "max_tokens": 8, "temperature": 0, **fields},
        headers={"X-Session-Id": session},
        timeout=120,
    )
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def said(body: dict[str, Any]) -> Any:
    return body["choices"][0]["message"]


def n_new(plan: dict[str, Any]) -> int:
    """Tokens of the prompt that no earlier one had."""
    return int(plan["prompt_tokens"]) - int(plan["shared_tokens"])


@pytest.mark.parametrize("thinks", [True, False])
def test_a_message_behind_a_reply_that_was_dropped_is_all_that_is_read(server: Live, thinks: bool) -> None:
    history = [SYSTEM, user(LONG), {"role": "assistant", "content": "Yes."}, user(LONG)]
    ask(server, *history, enable_thinking=thinks)
    again = ask(server, *history, user("And now?"), enable_thinking=thinks)
    plan = again["crossturn"]
    assert plan["shared_tokens"] > 800
    assert plan["prefilled_tokens"] <= n_new(plan) + 4
    server.http.delete(f"/v1/slots/{plan['slot']}")
    cold = ask(server, *history, user("And now?"), enable_thinking=thinks)
    assert said(cold) == said(again)


def test_titles_and_tags_asked_for_beside_and_before_leave_the_conversation_alone(server: Live) -> None:
    title = [{"role": "system", "content": "You write titles. " * 30}, user(f"Title this: {LONG}")]
    tags = [user(f"Three tags for this: {LONG}")]
    with ThreadPoolExecutor(3) as together:
        for question in (title, tags, [SYSTEM, user(LONG)]):
            together.submit(ask, server, *question)
    history = [SYSTEM, user(LONG), {"role": "assistant", "content": "Yes."}, user("And now?")]
    assert ask(server, *history)["crossturn"]["prefilled_tokens"] < 60
    for question in (title, tags):
        assert ask(server, *question)["crossturn"]["prefilled_tokens"] < 8


def test_a_reminder_that_moves_on_each_turn_costs_itself_and_a_memory_agent_nothing(server: Live) -> None:
    """As qwen-code does: a reminder stands in the newest user message only, and another agent, with a system
    prompt of its own, reads the whole conversation after each turn."""
    reminder = "Remember to keep the list of tasks. " * 8
    memory = {"role": "system", "content": "You keep a memory of what was said. " * 60}
    history: list[Message] = [SYSTEM]
    n_prefilled: list[int] = []
    for number in range(4):
        question = f"What is the answer to question {number}? "
        plan = ask(server, *history, user(reminder + question))["crossturn"]
        n_prefilled.append(plan["prefilled_tokens"] - n_new(plan))
        history += [user(question), {"role": "assistant", "content": f"It is {number}."}]
        beside = ask(server, memory, user("Write down: " + LONG + question))["crossturn"]
        if number:
            # Its one message changes at its end, before which a state is kept.
            assert beside["prefilled_tokens"] <= n_new(beside) + FIRST_MARK
            assert beside["reused_tokens"] > 500
    assert max(n_prefilled[1:]) <= 32
