"""From events to content blocks: one after the other, streamed as whole, with counts that add up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.anthropic.blocks import MAX_BYTES, carrying, naming, thought_in
from server.anthropic.reply import MessageEncoder, MessageShape
from server.events import Event, Finished, FinishReason, Planned, PlanReport, Progress
from tests.fakes.anthropic_types import EventOrder, check_event, check_message

Body = dict[str, Any]


def plan(*, n_prompt: int = 100, n_reused: int = 60) -> Planned:
    return Planned(
        PlanReport(
            slot="0",
            mode="ReplayFromCheckpoint",
            prompt_tokens=n_prompt,
            shared_tokens=n_reused,
            reused_tokens=n_reused,
            prefilled_tokens=n_prompt - n_reused,
            checkpoint=n_reused,
            reason="Because.",
        )
    )


def encoded(
    deltas: Iterable[Delta],
    *,
    reason: FinishReason = "stop",
    stop: str | None = None,
    **shape: Any,
) -> tuple[list[Body], Body]:
    """The events of a streamed reply, and the whole one."""
    encoder = MessageEncoder(MessageShape(id="msg-1", model="demo", **shape))
    told: list[Event] = [plan(), *(Progress(0, (delta,)) for delta in deltas)]
    told.append(Finished(0, reason, 9, 4, stop=stop))
    events = [json.loads(json.dumps(frame.data)) for event in told for frame in encoder.frames(event)]
    order = EventOrder()
    for event in events:
        check_event(event)
        order.read(event)
    assert order.is_over
    body = json.loads(json.dumps(encoder.body()))
    check_message(body)
    return events, body


def accumulated(events: Iterable[Body]) -> list[Body]:
    """The blocks that a client makes of a stream."""
    blocks: list[Body] = []
    partial = ""
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
            partial = ""
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[-1]
            match delta["type"]:
                case "text_delta":
                    block["text"] += delta["text"]
                case "thinking_delta":
                    block["thinking"] += delta["thinking"]
                case "signature_delta":
                    block["signature"] = delta["signature"]
                case "input_json_delta":
                    partial += delta["partial_json"]
        elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(partial)
    return blocks


def call(index: int, *fragments: str) -> list[Delta]:
    return [
        ToolCallStart(index, f"call_{index}", f"tool_{index}"),
        *(ToolCallArguments(index, fragment) for fragment in fragments),
    ]


def test_a_thought_text_and_calls_become_blocks() -> None:
    deltas = [
        ReasoningDelta("Let me "),
        ReasoningDelta("see."),
        ContentDelta("I "),
        ContentDelta("look."),
        *call(0, "{", '"a": 1', "}"),
        *call(1, "{", "}"),
    ]
    events, body = encoded(deltas, reason="tool_calls")
    assert body["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": naming("Let me see.")},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_0", "name": "tool_0", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_1", "name": "tool_1", "input": {}},
    ]
    assert accumulated(events) == body["content"]
    assert body["stop_reason"] == "tool_use"
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_a_thought_that_nobody_wants_to_see_is_in_its_signature() -> None:
    events, body = encoded([ReasoningDelta("Let me "), ReasoningDelta("see.")], shows_thoughts=False)
    (block,) = body["content"]
    assert block == {"type": "thinking", "thinking": "", "signature": carrying("Let me see.")}
    assert thought_in(block["signature"]) == "Let me see."
    assert accumulated(events) == [block]
    assert not any("thinking_delta" in json.dumps(event) for event in events)


def test_text_between_the_tags_of_a_call_waits_for_its_end() -> None:
    deltas = [
        *call(0, "{", '"a": '),
        ContentDelta("oops "),
        ToolCallArguments(0, "1"),
        ContentDelta("again"),
        ToolCallArguments(0, "}"),
        *call(1, "{}"),
        ContentDelta("done"),
    ]
    events, body = encoded(deltas, reason="tool_calls")
    assert [block.get("text") or block["input"] for block in body["content"]] == [
        {"a": 1},
        "oops again",
        {},
        "done",
    ]
    assert accumulated(events) == body["content"]


@pytest.mark.parametrize(
    ("fragments", "read"),
    [(("{",), {}), (("{", '"a": "he'), {"a": "he"}), (("{", '"a": 1', ', "b"'), {"a": 1}), ((), {})],
)
def test_a_call_that_breaks_off_is_read_as_far_as_it_goes(fragments: tuple[str, ...], read: Body) -> None:
    _, body = encoded(call(0, *fragments), reason="length")
    assert body["content"][0]["input"] == read
    assert body["stop_reason"] == "max_tokens"


PIECES = st.one_of(
    st.builds(ReasoningDelta, st.text(min_size=1, max_size=3)),
    st.builds(ContentDelta, st.text(min_size=1, max_size=3)),
    st.just("call"),
)


@given(st.lists(PIECES, max_size=12))
def test_a_stream_adds_up_to_the_whole_reply(pieces: list[Any]) -> None:
    deltas: list[Delta] = []
    n_calls = 0
    for piece in pieces:
        if piece == "call":
            deltas += call(n_calls, "{", "}")
            n_calls += 1
        else:
            deltas.append(piece)
    events, body = encoded(deltas)
    assert accumulated(events) == body["content"]
    assert "".join(b.get("text", "") for b in body["content"]) == "".join(
        d.text for d in deltas if isinstance(d, ContentDelta)
    )


@pytest.mark.parametrize(
    ("reason", "stop", "is_clamped", "told"),
    [
        ("stop", None, False, "end_turn"),
        ("stop", "\n\nHuman:", False, "stop_sequence"),
        ("tool_calls", None, True, "tool_use"),
        ("length", None, False, "max_tokens"),
        ("length", None, True, "model_context_window_exceeded"),
    ],
)
def test_the_stop_reason_says_what_ended_the_reply(
    reason: FinishReason, stop: str | None, is_clamped: bool, told: str
) -> None:
    events, body = encoded([ContentDelta("Hi")], reason=reason, stop=stop, is_clamped=is_clamped)
    assert (body["stop_reason"], body["stop_sequence"]) == (told, stop)
    assert events[-2]["delta"] == {"stop_reason": told, "stop_sequence": stop}


@pytest.mark.parametrize(("stored_end", "n_input", "n_stored"), [(0, 40, 0), (95, 5, 35), (50, 40, 0)])
def test_the_counts_add_up_to_the_prompt_from_the_first_event_on(
    stored_end: int, n_input: int, n_stored: int
) -> None:
    events, body = encoded([ContentDelta("Hi")], stored_end=stored_end)
    counts = {
        "input_tokens": n_input,
        "cache_creation_input_tokens": n_stored,
        "cache_read_input_tokens": 60,
    }
    assert sum(counts.values()) == 100
    assert events[0]["message"]["usage"] == {**counts, "output_tokens": 0}
    final = {**counts, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}
    assert events[-2]["usage"] == body["usage"] == final


def test_the_plan_stands_in_the_first_and_the_last_but_one_event_and_in_the_whole_reply() -> None:
    events, body = encoded([ContentDelta("Hi")])
    told = body["crossturn"]
    assert (told["mode"], told["reused_tokens"], told["reason"]) == ("ReplayFromCheckpoint", 60, "Because.")
    assert [i for i, event in enumerate(events) if event.get("crossturn") == told] == [0, len(events) - 2]
    assert events[0]["message"]["crossturn"] == told


def test_an_empty_reply_has_no_blocks() -> None:
    events, body = encoded([])
    assert body["content"] == []
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]


@given(st.text())
def test_a_signature_brings_a_thought_back(thought: str) -> None:
    assert thought_in(carrying(thought)) == thought


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "",
        "c2ln",
        naming("x"),
        carrying("x")[:-5],
        carrying("x")[:21] + "!" + carrying("x")[22:],
        carrying("0" * (MAX_BYTES + 1)),
    ],
)
def test_a_signature_that_holds_no_thought_is_none_and_harms_nobody(signature: str | None) -> None:
    assert thought_in(signature) is None
