"""Where the prompts of next turns part from this one, and what of them is known already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.text.chat import RenderedPrompt, tail_of
from tests.fakes.chatml import (
    DATED,
    KEEPS_THOUGHTS,
    STRIPS_THOUGHTS,
    call,
    chat_with,
    shared_chat,
    tokenizer_with,
    tool,
)

TEMPLATES = [None, STRIPS_THOUGHTS, KEEPS_THOUGHTS, DATED]
USER = {"role": "user", "content": "hi"}
RESULT = {"role": "tool", "content": "result"}
TOOLS = [tool("read", path={"type": "string"})]

# Short alphabets, so that messages often read alike.
words = st.sampled_from(["", "a", "b", "a ", "\na", "<tool_response>x</tool_response>"])
spoken = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": words}),
    st.fixed_dictionaries({"role": st.just("system"), "content": words}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": words}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": words},
        optional={
            "reasoning_content": words,
            "tool_calls": st.lists(st.builds(call, st.just("read"), st.just({})), min_size=1, max_size=2),
        },
    ),
)
conversations = st.one_of(
    st.lists(spoken, max_size=14).map(lambda messages: [USER, *messages]),
    st.integers(3, 9).map(lambda n: [USER, *[_calling("why"), RESULT] * n]),
    st.integers(3, 9).map(lambda n: [USER, {"role": "assistant", "content": "x"}, USER, *_loop(n)]),
)


@given(conversations, st.sampled_from(TEMPLATES), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=200)
def test_points_found_from_the_tail_are_those_of_whole_renders(
    messages: list[dict[str, Any]], template: str | None, with_tools: bool, thinks: bool
) -> None:
    chat = shared_chat(template)
    assert chat._tail_tells
    kwargs = {} if thinks else {"enable_thinking": False}
    conversation = chat._prepare(messages, TOOLS if with_tools else None, kwargs)
    blocks = chat._blocks(conversation, conversation.text())
    found = chat._points_from_tail(conversation, blocks)
    assert found in (None, chat._exact_points(conversation, blocks))


def test_points_of_a_plain_turn_lie_inside_the_assistants_head() -> None:
    head = "<|im_start|>assistant\n"
    assert _cut_texts(chat_with().render([USER])) == [head]
    assert _cut_texts(chat_with().render([USER], tools=TOOLS)) == [head, f"{head}<think>"]


def test_a04_the_first_point_is_shared_with_the_next_turn_whatever_the_reply() -> None:
    for thinking in ({}, {"enable_thinking": False}):
        for next_thinking in ({}, {"enable_thinking": False}):
            chat = chat_with(STRIPS_THOUGHTS)
            prompt = chat.render([USER], template_kwargs=thinking)
            reply = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
            following = chat.render([USER, reply, USER], template_kwargs=next_thinking)
            assert _n_shared(prompt, following) == prompt.shared_points[0]


def test_a07_in_a_tool_loop_the_next_question_parts_at_the_loops_first_thought() -> None:
    chat = chat_with(STRIPS_THOUGHTS)
    messages = [USER, {"role": "assistant", "content": "x"}, USER, *_loop(8)]
    prompt = chat.render(messages, tools=TOOLS)
    reply = {"role": "assistant", "content": "done", "reasoning_content": "because"}
    asked = chat.render([*messages, reply, {"role": "user", "content": "and?"}], tools=TOOLS)
    called = chat.render([*messages, _calling("more"), RESULT], tools=TOOLS)
    assert _n_shared(prompt, asked) in prompt.shared_points
    assert prompt.message_starts[4] < _n_shared(prompt, asked) < prompt.message_starts[5]
    assert _n_shared(prompt, called) == len(prompt.ids)
    silent = {"role": "assistant", "tool_calls": [call("read", {})]}
    assert _n_shared(prompt, chat.render([*messages, silent, RESULT], tools=TOOLS)) in prompt.shared_points


def test_where_thoughts_are_kept_nothing_before_the_head_changes() -> None:
    prompt = chat_with(KEEPS_THOUGHTS).render([USER, *_loop(4)], tools=TOOLS)
    assert all(point > prompt.message_starts[-1] for point in prompt.shared_points)


def test_a_template_whose_past_depends_on_its_future_is_compared_in_full() -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ ' ' ~ messages|length ~ '\n' ~ m.content }}"
        "{% endfor %}{{ '<|im_start|>assistant\n' }}"
    )
    chat = chat_with(template)
    assert not chat._tail_tells
    prompt = chat.render([USER, {"role": "assistant", "content": "x"}, USER])
    assert max(prompt.shared_points) < prompt.message_starts[1]


def test_a_template_that_forgets_thoughts_by_their_age_is_compared_in_full() -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}"
        "{% if m.reasoning_content and loop.revindex < 5 %}{{ m.reasoning_content }}{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}{{ '<|im_start|>assistant\n' }}"
    )
    chat = chat_with(template)
    thinking = {"role": "assistant", "content": "x", "reasoning_content": "why"}
    prompt = chat.render([USER, thinking, USER, thinking, USER])
    following = chat.render([USER, thinking, USER, thinking, USER, thinking, USER])
    assert _n_shared(prompt, following) in prompt.shared_points
    assert _n_shared(prompt, following) < prompt.message_starts[3]


def test_a_template_that_refuses_what_may_come_next_still_takes_what_is_there() -> None:
    template = (
        "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
        "{{ '<|im_start|>user\n' ~ messages[0].content ~ '<|im_start|>assistant\n' }}"
    )
    prompt = chat_with(template).render([USER])
    assert prompt.shared_points == ()
    assert prompt.message_roles == ("user", "assistant")


def test_the_tail_of_a_long_loop_is_both_of_its_ends() -> None:
    messages = [USER, {"role": "assistant", "content": "x"}, USER, *_loop(10)]
    tail = tail_of(messages)
    assert tail[0] is messages[2]
    assert len(tail) == 9
    assert tail_of(messages[:5]) == messages[2:5]


def test_continuing_a_reply_shares_all_of_it_with_the_next_turn() -> None:
    chat = chat_with(KEEPS_THOUGHTS)
    last = {"role": "assistant", "content": "Once upon"}
    prompt = chat.render([USER, last], continue_final=True)
    following = chat.render([USER, {"role": "assistant", "content": "Once upon a time."}, USER])
    assert _n_shared(prompt, following) in (*prompt.shared_points, len(prompt.ids))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call("read", {"path": "a"})]},
    ],
)
def test_what_is_known_of_the_next_prompt_begins_it(template: str | None, reply: dict[str, Any]) -> None:
    chat = chat_with(template)
    history = [{"role": "system", "content": "S"}, USER]
    known = chat.known_next(history, reply, tools=TOOLS)
    follow = "tool" if "tool_calls" in reply else "user"
    for said in ("What else?", "Zwölf <|im_end|>", "12", ""):
        following = chat.render([*history, reply, {"role": follow, "content": said}], tools=TOOLS)
        n_known = len(known) if said else len(known) - 1  # an empty message may melt into its frame
        assert following.ids[:n_known].tolist() == known[:n_known].tolist()
    if template is not DATED:
        assert len(known) > len(chat.render(history, tools=TOOLS).ids)


def _loop(n: int) -> list[dict[str, Any]]:
    return [message for i in range(n) for message in (_calling(f"step {i}"), RESULT)]


def _calling(thought: str) -> dict[str, Any]:
    return {"role": "assistant", "reasoning_content": thought, "tool_calls": [call("read", {"path": "a"})]}


def _n_shared(one: RenderedPrompt, other: RenderedPrompt) -> int:
    n = min(len(one.ids), len(other.ids))
    differs = np.flatnonzero(one.ids[:n] != other.ids[:n])
    return int(differs[0]) if len(differs) else n


def _cut_texts(prompt: RenderedPrompt) -> list[str]:
    start = prompt.message_starts[-1]
    return [tokenizer_with().decode(prompt.ids[start:point]) for point in prompt.shared_points]
