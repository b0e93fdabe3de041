"""Agents of other people's making complete a loop of tool calls against this server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import Event, Finished, GenerationRequest, Progress
from tests.fakes.fake_engine import FakeEngine, fake_served, planned
from tests.fakes.live_server import Live, live

pytestmark = [
    pytest.mark.conformance,
    # What these packages and their dependencies warn of is not ours to mend.
    pytest.mark.filterwarnings("default"),
]
CITIES = ("Rome", "Oslo", "Lima")
TOOL = {
    "type": "function",
    "function": {
        "name": "population",
        "description": "How many people live in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def asks_for_every_city(request: GenerationRequest) -> Iterable[Event]:
    """Calls the tool for one city after the other, then sums up."""
    n_results = bytes(request.prompt.ids.tolist()).count(b"tool: ")
    yield planned(request)
    yield Progress(0, (ReasoningDelta("Let me see."),))
    if n_results == len(CITIES):
        yield Progress(0, (ContentDelta("All "),))
        yield Progress(0, (ContentDelta("counted."),))
        yield Finished(0, "stop", 5, 2)
        return
    arguments = json.dumps({"city": CITIES[n_results]})
    yield Progress(0, (ToolCallStart(0, f"call_{n_results}", "population"),))
    yield Progress(0, tuple(ToolCallArguments(0, character) for character in arguments))
    yield Finished(0, "tool_calls", 20, 2)


@pytest.fixture
def server() -> Iterator[Live]:
    with live(FakeEngine(asks_for_every_city), fake_served("demo")) as running:
        yield running


@pytest.mark.parametrize("streaming", [True, False])
def test_langchain_openai_completes_a_tool_loop(server: Live, streaming: bool) -> None:
    chat_models = pytest.importorskip("langchain_openai", reason="needs the extra 'conformance'")
    messages = pytest.importorskip("langchain_core.messages")
    model = chat_models.ChatOpenAI(
        model="demo",
        base_url=server.url,
        api_key="unused",
        streaming=streaming,
        max_retries=0,
        stream_usage=True,
    ).bind_tools([TOOL])
    history: list[Any] = [messages.HumanMessage("Count the people.")]
    asked: list[str] = []
    while True:
        reply = model.invoke(history)
        history.append(reply)
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            asked.append(call["args"]["city"])
            history.append(messages.ToolMessage("1000", tool_call_id=call["id"]))
    assert asked == list(CITIES)
    assert reply.content == "All counted."
    assert reply.usage_metadata["input_tokens"] > 0


@pytest.mark.parametrize("streaming", [True, False])
def test_litellm_completes_a_tool_loop(server: Live, streaming: bool) -> None:
    litellm = pytest.importorskip("litellm", reason="needs the extra 'conformance'")
    history: list[Any] = [{"role": "user", "content": "Count the people."}]
    asked: list[str] = []
    while True:
        reply = litellm.completion(
            model="openai/demo",
            api_base=server.url,
            api_key="unused",
            messages=history,
            tools=[TOOL],
            stream=streaming,
            max_retries=0,
        )
        if streaming:
            reply = litellm.stream_chunk_builder(list(reply), messages=history)
        message = reply.choices[0].message
        history.append(message.model_dump())
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            asked.append(json.loads(call.function.arguments)["city"])
            history.append({"role": "tool", "tool_call_id": call.id, "content": "1000"})
    assert asked == list(CITIES)
    assert message.content == "All counted."
    assert message.reasoning_content == "Let me see."
