"""Whatever comes in is answered or refused in this dialect's shape, by the name of what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from model.text.chat import ChatFormat
from model.text.tokenizer import TextTokenizer
from server.anthropic.schema.requests import MessagesRequest
from tests.fakes.anthropic_asking import captured
from tests.fakes.fake_engine import FakeEngine, fake_served, says
from tests.fakes.live_server import Live, live
from tests.fakes.mutations import mutants, shortened

FULL: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 5000,
    "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "system", "content": "Noon.", "clear_at": "never", "output_config": {"effort": "low"}},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "AAAA"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "search", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [
                        {"type": "text", "text": "1"},
                        {"type": "tool_reference", "tool_name": "late"},
                    ],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
        {
            "role": "system",
            "content": [
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "search"}},
                {
                    "type": "tool_addition",
                    "tool": {"type": "tool_definition", "definition": {"name": "new", "input_schema": {}}},
                },
            ],
        },
    ],
    "tools": [
        {
            "name": "f",
            "description": "Does it.",
            "input_schema": {
                "$schema": "x",
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 1]}},
                "required": ["a"],
            },
            "strict": True,
        },
        {"name": "search", "input_schema": {"type": "object"}, "input_examples": [{"q": "x"}]},
        {"name": "late", "input_schema": {"type": "object"}, "defer_loading": True},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "summarized"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "stop_sequences": ["\n\nHuman:"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "stream": False,
    "metadata": {"user_id": '{"session_id": "s"}'},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}


@pytest.fixture(scope="module")
def server(tokenizer: TextTokenizer) -> Iterator[Live]:
    """The real text side, and an engine that only says a word."""
    served = replace(fake_served(context_length=32_768), chat=ChatFormat(tokenizer), tokens=tokenizer)
    with live(FakeEngine(says("ok")), served) as running:
        yield running


def test_the_bodies_that_are_changed_are_answered(server: Live) -> None:
    assert server.http.post("/v1/messages", json=FULL).status_code == 200


@pytest.mark.slow
def test_changed_bodies_meet_no_fault_and_refusals_name_the_field(
    server: Live, request: pytest.FixtureRequest
) -> None:
    """So many as ``--requests`` says; 2,000 were sent before a release."""
    n_bodies = request.config.getoption("--requests")
    names = ("claude-code-print-2", "claude-code-title", "claude-code-interactive-2")
    bodies = [FULL, FULL, *(shortened(captured(name, model="demo", stream=False)[0]) for name in names)]
    known = set(MessagesRequest.model_fields)
    told: Counter[int] = Counter()
    for i, body in enumerate(mutants(bodies, n_bodies, seed=14)):
        path = "/v1/messages/count_tokens" if i % 4 == 0 else "/v1/messages"
        response = server.http.post(path, json=body)
        told[response.status_code] += 1
        assert response.status_code in (200, 400, 404), f"{response.text} of {body}"
        if response.status_code == 400:
            error = response.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert any(name in error["message"] for name in known | set(body)), f"{error} of {body}"
    assert told[200] > n_bodies // 10
    assert told[400] > n_bodies // 10
