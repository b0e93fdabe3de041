"""Packages that speak Anthropic's dialect complete a loop of tool calls against this server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.fakes.fake_engine import FakeEngine, fake_served
from tests.fakes.live_server import Live, live
from tests.responses.test_sdk import CITIES, asks_for_every_city

pytestmark = [
    pytest.mark.conformance,
    # What these packages and their dependencies warn of is not ours to mend.
    pytest.mark.filterwarnings("default"),
]
ANSWER = '{"total": 3000}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ABOUT = "How many people live in a city."


@pytest.fixture
def server() -> Iterator[Live]:
    with live(FakeEngine(asks_for_every_city), fake_served("demo")) as running:
        yield running


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_anthropics_package_completes_a_loop_of_calls(server: Live, streaming: bool, display: str) -> None:
    history: list[Any] = [{"role": "user", "content": "Count the people."}]
    asked: list[str] = []
    request: dict[str, Any] = {
        "model": "demo",
        "max_tokens": 2000,
        "thinking": {"type": "adaptive", "display": display},
        "tools": [{"name": "population", "description": ABOUT, "input_schema": SCHEMA}],
    }
    root = server.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=root, api_key="unused", max_retries=0) as client:
        while True:
            counted = client.messages.count_tokens(
                messages=history, **{name: value for name, value in request.items() if name != "max_tokens"}
            )
            if streaming:
                with client.messages.stream(messages=history, **request) as events:
                    reply = events.get_final_message()
            else:
                reply = client.messages.create(messages=history, **request)
            assert counted.input_tokens == reply.usage.input_tokens
            history.append({"role": "assistant", "content": reply.content})
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                break
            asked += [str(call.input["city"]) for call in calls]
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "1000"} for call in calls]
            history.append({"role": "user", "content": results})
    assert asked == list(CITIES)
    assert reply.content[-1].text == ANSWER  # type: ignore[union-attr]
    renders = server.gateway.served.chat.renders  # type: ignore[attr-defined]
    thoughts = [message.get("reasoning_content") for message in renders[-1]["messages"]]
    assert thoughts.count("Let me see.") >= len(CITIES)  # the last one may have been read ahead


@pytest.mark.parametrize("streaming", [True, False])
def test_litellms_bridge_completes_a_loop_of_calls(server: Live, streaming: bool) -> None:
    litellm = pytest.importorskip("litellm", reason="needs the extra 'conformance'")
    tool = {
        "type": "function",
        "function": {"name": "population", "description": ABOUT, "parameters": SCHEMA},
    }
    history: list[dict[str, Any]] = [{"role": "user", "content": "Count the people."}]
    asked: list[str] = []
    while True:
        reply = litellm.completion(
            model="anthropic/demo",
            api_base=server.url.removesuffix("/v1"),
            api_key="unused",
            messages=history,
            tools=[tool],
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
    assert message.content == ANSWER
    assert reply.usage.prompt_tokens > 0
