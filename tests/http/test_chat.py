"""Chat completions over HTTP, with a scripted engine behind them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import Finished, Progress
from server.settings import Settings
from tests.fakes.fake_engine import FakeEngine, replies, says
from tests.fakes.live_server import ASK, live


def test_a_whole_reply_carries_text_usage_and_plan() -> None:
    with live(FakeEngine(says("Hel", "lo"))) as server:
        body = server.chat().json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "demo"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"]["completion_tokens"] == 3
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert body["crossturn"]["mode"] == "FullRefill"


def test_the_openai_package_reads_a_whole_reply_and_a_stream() -> None:
    with live(FakeEngine(says("Hel", "lo"))) as server:
        whole = server.openai.chat.completions.create(**ASK)
        stream = server.openai.chat.completions.create(**ASK, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert whole.choices[0].message.content == "Hello" == text


def test_a_stream_begins_with_the_role_and_ends_with_done() -> None:
    with live(FakeEngine(says("Hel", "lo"))) as server:
        response = server.chat(stream=True, stream_options={"include_usage": True})
    frames = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert frames[-1] == "[DONE]"
    chunks = [json.loads(frame) for frame in frames[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert [i for i, chunk in enumerate(chunks) if "crossturn" in chunk] == [0, len(chunks) - 1]


def test_thoughts_and_calls_are_the_same_streamed_and_whole() -> None:
    script = replies(
        Progress(0, (ReasoningDelta("Let me"),)),
        Progress(0, (ReasoningDelta(" look."), ContentDelta("I ask."))),
        Progress(0, (ToolCallStart(0, "call_1", "look"), ToolCallArguments(0, '{"a":'))),
        Progress(0, (ToolCallArguments(0, "1}"),)),
        Finished(0, "tool_calls", 9, 3),
    )
    with live(FakeEngine(script)) as server:
        message = server.chat().json()["choices"][0]["message"]
        frames = server.chat(stream=True).text.split("\n\n")
    deltas = [
        json.loads(frame.removeprefix("data: "))["choices"][0]["delta"] for frame in frames if "{" in frame
    ]
    assert message["reasoning_content"] == "Let me look."
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a":1}'}
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0] == {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "look", "arguments": ""},
    }
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a":1}'
    for field in ("content", "reasoning_content"):
        assert "".join(delta.get(field, "") for delta in deltas) == message[field]


@pytest.mark.parametrize("stream", [True, False])
def test_what_follows_a_reply_is_read_ahead(stream: bool) -> None:
    with live(FakeEngine(says("Hello"))) as server:
        server.chat(stream=stream, prompt_cache_key="k")
        assert server.engine.was_warmed.wait(10)
        (warmed,) = server.engine.ahead
    assert warmed.slot == server.engine.requests[0].slot
    assert bytes(warmed.prompt.ids.tolist()) == b"user: Hi\nassistant: Hello"


@pytest.mark.parametrize(
    ("fields", "idle_prefill"),
    [({}, False), ({"n": 2}, True), ({"messages": [{"role": "assistant", "content": "Once"}]}, True)],
)
def test_what_cannot_be_foreseen_is_not_read_ahead(fields: dict[str, Any], idle_prefill: bool) -> None:
    with live(settings=Settings(idle_prefill=idle_prefill)) as server:
        assert server.chat(**fields).status_code == 200
    assert server.engine.ahead == []
