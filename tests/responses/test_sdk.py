"""OpenAI's own package against this dialect: create, stream, parse, retrieve, and a loop of calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import Event, Finished, GenerationRequest, Progress
from tests.fakes.fake_engine import FakeEngine, fake_served, planned
from tests.fakes.live_server import Live, live

CITIES = ("Rome", "Oslo", "Lima")
TOOL: Any = {
    "type": "function",
    "name": "population",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def asks_for_every_city(request: GenerationRequest) -> Iterable[Event]:
    """Calls the tool for one city after the other, then sums up."""
    n_results = bytes(request.prompt.ids.tolist()).count(b"tool: ")
    yield planned(request)
    yield Progress(0, (ReasoningDelta("Let me see."),))
    if n_results == len(CITIES):
        yield Progress(0, (ContentDelta('{"total": '),))
        yield Progress(0, (ContentDelta("3000}"),))
        yield Finished(0, "stop", 5, 2)
        return
    arguments = json.dumps({"city": CITIES[n_results]})
    yield Progress(0, (ToolCallStart(0, f"call_{n_results}", "population"),))
    yield Progress(0, tuple(ToolCallArguments(0, character) for character in arguments))
    yield Finished(0, "tool_calls", 20, 2)


class Answer(BaseModel):
    total: int


@pytest.fixture
def server() -> Iterator[Live]:
    with live(FakeEngine(asks_for_every_city), fake_served("demo")) as running:
        yield running


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("streams", [True, False])
def test_a_loop_of_calls_by_ids_or_by_items(server: Live, streams: bool, stores: bool) -> None:
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": "Count the people."}]
    previous: Any = openai.omit
    while True:
        options: Any = {
            "model": "demo",
            "input": history,
            "tools": [TOOL],
            "store": stores,
            "previous_response_id": previous,
        }
        if streams:
            with server.openai.responses.stream(**options) as events:
                told: Any = events.get_final_response()
        else:
            told = server.openai.responses.create(**options)
        calls = [item for item in told.output if item.type == "function_call"]
        if not calls:
            break
        if stores:
            previous, history = told.id, []
        else:
            history += told.output
        for call in calls:
            asked.append(json.loads(call.arguments)["city"])
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": "1000"})
    assert asked == list(CITIES)
    assert told.output_text == '{"total": 3000}'
    assert told.usage.input_tokens > 0


@pytest.mark.parametrize("streams", [True, False])
def test_a_reply_is_parsed(streams: bool) -> None:
    def sums(request: GenerationRequest) -> Iterable[Event]:
        yield planned(request)
        yield Progress(0, (ContentDelta('{"total": 1}'),))
        yield Finished(0, "stop", 5, 0)

    with live(FakeEngine(sums), fake_served("demo")) as server:
        responses = server.openai.responses
        if streams:
            with responses.stream(model="demo", input="How many?", text_format=Answer) as events:
                told: Any = events.get_final_response()
        else:
            told = responses.parse(model="demo", input="How many?", text_format=Answer)
        assert told.output_parsed == Answer(total=1)
        assert server.engine.requests[0].reply.grammar is not None


def test_what_is_kept_is_retrieved_listed_and_deleted(server: Live) -> None:
    responses = server.openai.responses
    told = responses.create(model="demo", input="Hi", tools=[TOOL])
    assert responses.retrieve(told.id).output == told.output
    assert [item.type for item in responses.input_items.list(told.id)] == ["message"]
    assert responses.input_tokens.count(model="demo", input="Hi", tools=[TOOL]).input_tokens > 0
    responses.delete(told.id)
    with pytest.raises(openai.NotFoundError) as caught:
        responses.retrieve(told.id)
    assert caught.value.code == "response_not_found"
