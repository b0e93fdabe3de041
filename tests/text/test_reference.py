"""Prompts against transformers, the library that checkpoints are trained and published with."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.chatml import DATED, DEMO, KEEPS_THOUGHTS, STRIPS_THOUGHTS, shared_chat, tool

transformers = pytest.importorskip("transformers")

TEMPLATES = [None, STRIPS_THOUGHTS, KEEPS_THOUGHTS, DATED]
TOOLS = [tool("read", path={"type": "string", "description": "wo ist „es“?"}), tool("stop")]

texts = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs", "Co"]), max_size=12)
arguments = st.dictionaries(
    st.sampled_from(["path", "n", "flags"]),
    st.one_of(texts, st.integers(), st.booleans(), st.none(), st.lists(texts, max_size=2)),
    max_size=3,
)
calls = st.builds(
    lambda name, given: {"type": "function", "function": {"name": name, "arguments": given}},
    st.sampled_from(["read", "stop"]),
    arguments,
)
users = st.fixed_dictionaries({"role": st.just("user"), "content": texts})
replies = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": texts},
    optional={"reasoning_content": texts, "tool_calls": st.lists(calls, min_size=1, max_size=2)},
)
results = st.fixed_dictionaries({"role": st.just("tool"), "content": texts})
systems = st.fixed_dictionaries({"role": st.just("system"), "content": texts})
conversations = st.builds(
    lambda system, first, rest: [*system, first, *rest],
    st.lists(systems, max_size=1),
    users,
    st.lists(st.one_of(users, replies, results), max_size=8),
)


@cache
def reference(template: str | None) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


@given(
    conversations,
    st.sampled_from(TEMPLATES),
    st.booleans(),
    st.sampled_from([{}, {"enable_thinking": False}, {"enable_thinking": True}]),
)
@settings(max_examples=150)
def test_prompts_are_those_of_transformers(
    messages: list[dict[str, Any]], template: str | None, with_tools: bool, switches: dict[str, bool]
) -> None:
    tools = TOOLS if with_tools else None
    wanted = reference(template).apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False, **switches
    )
    prompt = shared_chat(template).render(messages, tools=tools, template_kwargs=switches)
    assert prompt.ids.tolist() == list(wanted)
