"""What a request asks for beside its messages: sessions, thinking, tools, formats, sampling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model.errors import InputError
from server.turn.compose import plan_thinking
from tests.fakes.anthropic_asking import turn

HI = {"role": "user", "content": "Hi"}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"}]}
SESSION = "0b5ae0a0-8a3c-4d5e-9f00-0123456789ab"
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("f", "g")]


@pytest.mark.parametrize(
    ("headers", "user_id", "session"),
    [
        ({}, None, None),
        ({}, "somebody", None),
        ({}, '{"device_id": "d"}', None),
        ({}, '{"session_id": 5}', None),
        ({}, "{" * 100_000, None),
        ({"x-session-id": "mine"}, "somebody", "mine"),
        ({"x-session-id": "mine"}, json.dumps({"session_id": SESSION}), SESSION),
        ({"x-session-id": "mine"}, f"user_1_account__session_{SESSION}", SESSION),
        (
            {"x-claude-code-session-id": "code", "x-session-id": "mine"},
            json.dumps({"session_id": "s"}),
            "code",
        ),
        ({"x-claude-code-session-id": "", "x-session-id": "mine"}, "", "mine"),
    ],
)
def test_the_session_is_the_first_that_is_named(
    headers: dict[str, str], user_id: str | None, session: str | None
) -> None:
    fields = {} if user_id is None else {"metadata": {"user_id": user_id}}
    assert turn(headers=headers, **fields).session == session


@pytest.mark.parametrize(
    ("fields", "thinks", "enabled", "budget"),
    [
        ({}, None, False, None),
        ({}, True, True, None),
        ({}, False, False, None),
        ({"thinking": {"type": "disabled"}}, True, False, None),
        ({"thinking": {"type": "enabled"}}, False, True, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, None, True, 2048),
        ({"thinking": {"type": "adaptive"}}, None, True, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, None, True, 1024),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, None, True, None),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "low"}},
            None,
            True,
            2048,
        ),
        ({"output_config": {"effort": "low"}}, None, False, None),
        ({"output_config": {"effort": "low"}}, True, True, 1024),
        ({"thinking": {"type": "between_tools"}}, None, False, None),
        ({"thinking": {"type": "between_tools"}, "messages": [HI, RESULT]}, None, True, None),
        (
            {
                "thinking": {"type": "between_tools"},
                "messages": [HI, RESULT, {"role": "system", "content": "Noon."}],
            },
            None,
            True,
            None,
        ),
    ],
)
def test_thinking_is_what_the_request_says_and_else_off(
    fields: dict[str, Any], thinks: bool | None, enabled: bool, budget: int | None
) -> None:
    plan = plan_thinking(turn(thinks=thinks, **fields).thinking, thinks, {"enable_thinking"})
    assert plan.template_kwargs == {"enable_thinking": enabled}
    assert plan.max_tokens == budget


@pytest.mark.parametrize(
    ("messages", "effort"),
    [
        ([HI], "high"),
        ([HI, {"role": "system", "content": "x", "output_config": {"effort": "low"}}], "low"),
        ([HI, {"role": "system", "content": "x", "output_config": {}}], "high"),
        (
            [
                HI,
                {"role": "system", "content": "x", "output_config": {"effort": "low"}},
                {"role": "assistant", "content": "y"},
                HI,
            ],
            "high",
        ),
    ],
)
def test_a_system_messages_effort_holds_for_its_turn(messages: list[Any], effort: str) -> None:
    asked = turn(messages=messages, thinking={"type": "adaptive"}, output_config={"effort": "high"})
    assert asked.thinking.effort == effort


@pytest.mark.parametrize(
    ("choice", "mode", "names", "parallel"),
    [
        (None, "auto", None, True),
        ({"type": "auto"}, "auto", None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", None, False),
        ({"type": "any"}, "required", None, True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", None, False),
        ({"type": "tool", "name": "g"}, "required", ("g",), False),
        ({"type": "none"}, "none", None, True),
    ],
)
def test_every_form_of_tool_choice_is_taken(
    choice: Any, mode: str, names: tuple[str, ...] | None, parallel: bool
) -> None:
    asked = turn(tools=TOOLS, **({} if choice is None else {"tool_choice": choice})).tool_choice
    assert (asked.mode, asked.names, asked.parallel) == (mode, names, parallel)


def test_a_tool_keeps_what_the_model_should_know_of_it() -> None:
    tool = {
        "name": "f",
        "description": "Does it.",
        "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMA},
        "type": "custom",
        "strict": True,
        "input_examples": [{"title": "x"}],
        "eager_input_streaming": True,
        "allowed_callers": ["direct", "code_execution_20250825"],
        "cache_control": {"type": "ephemeral", "scope": "global"},
        "defer_loading": False,
    }
    (told,) = turn(tools=[tool]).tools
    assert list(told["function"].items()) == [
        ("name", "f"),
        ("description", "Does it."),
        ("parameters", SCHEMA),
        ("strict", True),
        ("examples", [{"title": "x"}]),
    ]


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_format_is_a_schema_that_the_reply_must_match(field: str) -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    asked = turn(**{field: {"format": wanted} if field == "output_config" else wanted})
    assert asked.response_format is not None
    assert asked.response_format.schema == SCHEMA


def test_sampling_and_stops_are_taken_over() -> None:
    asked = turn(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["\n\n"], max_tokens=9)
    told = asked.sampling
    assert (told.temperature, told.top_p, told.top_k) == (0.5, 0.9, 7)
    assert (asked.stop, asked.max_tokens) == (["\n\n"], 9)


WITHOUT_EFFECT: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "safeguards": [{"type": "dangerous_tool_use", "classifier_context": {"v": 1}}],
    "diagnostics": {"previous_message_id": "msg_1"},
    "service_tier": "auto",
    "inference_geo": "eu",
    "speed": "standard",
}


@pytest.mark.parametrize("field", WITHOUT_EFFECT)
def test_what_only_anthropics_service_can_do_is_taken_without_effect(field: str) -> None:
    assert turn(**{field: WITHOUT_EFFECT[field]}) == turn()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": ...}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [HI, {"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "messages[1].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
        ),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        (
            {"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code"]}]},
            "tools[0].allowed_callers",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "required"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "on"}}, "thinking"),
        ({"output_config": {"effort": "extreme"}}, "output_config.effort"),
        (
            {"context_management": {"edits": [{"type": "compact_20260112"}]}},
            "context_management.edits[0].type",
        ),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"speed": "fast"}, "speed"),
        ({"top_p": 2}, "top_p"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InputError) as refused:
        turn(**fields)
    assert refused.value.param == param
    assert param in refused.value.message
