"""What a reply becomes: items, their events in the official order, and one body that says the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from model.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import (
    Divergence,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Planned,
    Progress,
    TokenLogprob,
)
from tests.fakes.fake_engine import FakeEngine, fake_served, planned, replies
from tests.fakes.live_server import Live, live
from tests.responses.kit import kinds, post, respond, stream

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch"}
AGENTS = {"type": "namespace", "name": "agents", "description": "d", "tools": [{**FUNCTION, "name": "g"}]}
SEARCH = {"type": "tool_search", "execution": "client"}
TOOLS = [FUNCTION, PATCH, AGENTS, SEARCH]
THOUGHT = (ReasoningDelta("Let me "), ReasoningDelta("see."))
TEXT = (ContentDelta("Hel"), ContentDelta("lo."))
ASK = {"input": "Hi"}


def call(index: int, name: str, arguments: str) -> tuple[Delta, ...]:
    return (
        ToolCallStart(index, f"call_{index}", name),
        *(ToolCallArguments(index, piece) for piece in arguments),
    )


@pytest.fixture
def server() -> Iterator[Live]:
    with live(FakeEngine(), fake_served("demo")) as running:
        yield running


def let(server: Live, *deltas: Delta, reason: str = "stop", n: int = 9, thought: int = 0) -> None:
    """The model writes ``deltas``, one event each."""
    events = [Progress(0, (delta,)) for delta in deltas]
    server.engine.script = replies(*events, Finished(0, reason, n, thought))  # type: ignore[arg-type]


def both(server: Live, body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole response and the events of a streamed one, which must say the same but for ids and times."""
    whole, events = respond(server, body), stream(server, body)
    streamed = events[-1]["response"]
    for told in (whole, streamed):
        for item in told["output"]:
            assert item["id"].split("_")[0] in ("rs", "msg", "fc", "ctc", "tsc")

    def bare(told: dict[str, Any]) -> dict[str, Any]:
        unique = ("id", "created_at", "completed_at")
        output = [{k: v for k, v in item.items() if k != "id"} for item in told["output"]]
        return {**{k: v for k, v in told.items() if k not in unique}, "output": output}

    assert bare(whole) == bare(streamed)
    return whole, events


def test_a_text_is_a_message(server: Live) -> None:
    let(server, *TEXT)
    whole, events = both(server, ASK)
    assert whole["status"] == "completed"
    assert [item["type"] for item in whole["output"]] == ["message"]
    assert whole["output"][0]["content"] == [
        {"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}
    ]
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize("summary", [None, "auto", "detailed", "none"])
def test_a_thought_is_told_as_it_is_unless_a_summary_is_wanted_and_kept_as_it_is(
    server: Live, summary: str | None
) -> None:
    let(server, *THOUGHT, *TEXT, thought=4)
    whole, events = both(server, {**ASK, "reasoning": {"summary": summary}})
    thought = whole["output"][0]
    assert thought["type"] == "reasoning"
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    summary = None if summary == "none" else summary
    assert whole["reasoning"]["summary"] == summary
    told = [{"type": "summary_text", "text": "Let me see."}] if summary else []
    assert thought["summary"] == told
    assert "encrypted_content" not in thought
    part, text = (
        ("reasoning_summary_part", "reasoning_summary_text")
        if summary
        else ("content_part", "reasoning_text")
    )
    assert kinds(events)[2:8] == [
        "output_item.added",
        f"{part}.added",
        f"{text}.delta",
        f"{text}.done",
        f"{part}.done",
        "output_item.done",
    ]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


def test_every_kind_of_tool_comes_back_in_its_own_form(server: Live) -> None:
    let(
        server,
        *THOUGHT,
        *call(0, "f", '{"a": 1}'),
        *call(1, "patch", '{"input": "*** \\u00e4\\n"}'),
        *call(2, "agents__g", "{}"),
        *call(3, "tool_search", '{"query": "q"}'),
        reason="tool_calls",
    )
    whole, events = both(server, {**ASK, "tools": TOOLS})
    _, function, custom, namespaced, search = [
        {name: value for name, value in item.items() if name != "id"} for item in whole["output"]
    ]
    done = {"status": "completed"}
    assert function == {
        "type": "function_call",
        "call_id": "call_0",
        "name": "f",
        "arguments": '{"a": 1}',
        **done,
    }
    assert custom == {
        "type": "custom_tool_call",
        "call_id": "call_1",
        "name": "patch",
        "input": "*** ä\n",
        **done,
    }
    assert (namespaced["name"], namespaced["namespace"]) == ("g", "agents")
    assert search == {
        "type": "tool_search_call",
        "call_id": "call_3",
        "execution": "client",
        "arguments": {"query": "q"},
        **done,
    }
    assert whole["status"] == "completed"
    assert kinds(events)[8:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize(
    ("deltas", "types"),
    [
        (THOUGHT, ["reasoning"]),
        ((*THOUGHT, *TEXT), ["reasoning", "message"]),
        (call(0, "f", '{"a": '), ["function_call"]),
        ((), []),
    ],
)
def test_what_the_limit_cuts_is_incomplete(server: Live, deltas: tuple[Delta, ...], types: list[str]) -> None:
    let(server, *deltas, reason="length")
    whole, events = both(server, {**ASK, "tools": TOOLS, "max_output_tokens": 9})
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["completed_at"] is None
    assert events[-1]["type"] == "response.incomplete"
    assert [item["type"] for item in whole["output"]] == types
    assert [item["status"] for item in whole["output"]] == [
        *["completed"] * (len(types) - 1),
        *["incomplete"] * min(1, len(types)),
    ]


@pytest.mark.parametrize("deltas", [(), THOUGHT])
def test_a_reply_that_says_nothing_has_an_empty_message(server: Live, deltas: tuple[Delta, ...]) -> None:
    let(server, *deltas)
    whole, _ = both(server, ASK)
    assert whole["output"][-1]["content"][0]["text"] == ""


def test_text_behind_a_call_is_a_message_of_its_own(server: Live) -> None:
    let(server, *TEXT, *call(0, "f", "{}"), ContentDelta("Bye."))
    whole, _ = both(server, {**ASK, "tools": TOOLS})
    assert [item["type"] for item in whole["output"]] == ["message", "function_call", "message"]


def test_usage_splits_the_prompt_into_what_was_read_and_what_was_not(server: Live) -> None:
    let(server, *TEXT, n=5)
    usage = respond(server, ASK)["usage"]
    assert usage["input_tokens"] == len("user: Hi")
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": len("user: Hi")}
    assert (usage["output_tokens"], usage["total_tokens"]) == (5, 5 + len("user: Hi"))


def test_log_probabilities_come_with_the_text_where_they_are_asked_for(server: Live) -> None:
    known = TokenLogprob(72, -0.5, ((72, -0.5), (73, float("-inf"))))
    server.engine.script = replies(
        Progress(0, (ReasoningDelta("Hm"),)),
        Progress(0, (ContentDelta("H"), ContentDelta("i")), (known, known)),
        Finished(0, "stop", 3, 1),
    )
    asked = {**ASK, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole, events = both(server, asked)
    part = whole["output"][1]["content"][0]
    entry = {"token": "H", "logprob": -0.5, "bytes": [72]}
    assert part["logprobs"][0] == {
        **entry,
        "top_logprobs": [entry, {"token": "I", "logprob": -9999.0, "bytes": [73]}],
    }
    assert len(part["logprobs"]) == 2
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert sum(len(event["logprobs"]) for event in deltas) == 2
    assert server.engine.requests[0].top_logprobs == 2
    assert respond(server, ASK)["output"][1]["content"][0]["logprobs"] == []


def test_a_fault_midway_ends_the_stream_with_a_failed_response(server: Live) -> None:
    server.engine.script = replies(
        Progress(0, THOUGHT), Progress(0, TEXT), Failed("It broke.", kind="internal")
    )
    events = stream(server, ASK)
    failed = events[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "It broke."}
    assert [item["type"] for item in failed["response"]["output"]] == ["reasoning"]
    assert server.http.get(f"/v1/responses/{failed['response']['id']}").status_code == 404
    assert post(server, ASK).status_code == 500


def test_an_overloaded_engine_says_so_in_a_stream_and_by_status(server: Live) -> None:
    server.engine.script = replies(Failed("Come back.", kind="overloaded", retry_after_s=3))
    assert stream(server, ASK)[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
    response = post(server, ASK)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "3")


def test_what_an_earlier_request_said_is_told_neither_in_a_body_nor_in_a_header(server: Live) -> None:
    def script(request: GenerationRequest) -> Iterator[Event]:
        parted = Divergence(0, "user", True, kept="a secret", sent="no secret")
        yield Planned(replace(planned(request).report, divergence=parted))
        yield Finished(0, "stop", 1, 0)

    server.engine.script = script
    response = post(server, ASK)
    assert json.loads(response.headers["X-Crossturn-Plan"]) == response.json()["crossturn"]
    assert "secret" not in str(response.headers) + response.text


def test_the_request_comes_back_with_its_response(server: Live) -> None:
    let(server, *TEXT)
    asked = {
        **ASK,
        "instructions": "Be brief.",
        "max_output_tokens": 50,
        "metadata": {"a": "b", "n": 1},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low"},
        "safety_identifier": "s",
        "service_tier": "auto",
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"default": None}}},
        "tool_choice": {"type": "function", "name": "f"},
        "tools": TOOLS,
        "top_p": 0.9,
        "user": "u",
    }
    told = respond(server, asked)
    for name, value in asked.items():
        if name not in ("input", "metadata", "reasoning", "service_tier", "tools"):
            assert told[name] == value
    assert told["metadata"] == {"a": "b", "n": "1"}
    assert told["reasoning"] == {"effort": "low", "summary": None}
    assert told["tools"][0] == {**FUNCTION, "description": None, "strict": None}
    assert told["tools"][1:] == TOOLS[1:]
    assert set(told["crossturn"]) == set(server.chat().json()["crossturn"])
    assert json.dumps(told)
