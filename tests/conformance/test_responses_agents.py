"""Agents that speak Responses by default complete their loops against this server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import Event, Finished, GenerationRequest, Progress
from tests.conformance.programs import BIN, NODE, needs_node, run
from tests.fakes.fake_engine import FakeEngine, fake_served, planned
from tests.fakes.live_server import Live, live
from tests.responses.test_sdk import CITIES, asks_for_every_city

pytestmark = [
    pytest.mark.conformance,
    # What these packages and their dependencies warn of is not ours to mend.
    pytest.mark.filterwarnings("default"),
]
ANSWER = '{"total": 3000}'
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


@pytest.fixture
def server() -> Iterator[Live]:
    with live(FakeEngine(asks_for_every_city), fake_served("demo", context_length=1 << 20)) as running:
        yield running


def test_openai_agents_completes_a_loop_of_calls_and_goes_on(server: Live) -> None:
    agents = pytest.importorskip("agents", reason="needs the extra 'conformance'")
    openai = pytest.importorskip("openai")
    asked: list[str] = []

    async def loop() -> tuple[str, str]:
        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=server.url, api_key="unused", max_retries=0)
        agents.set_default_openai_client(client, use_for_tracing=False)

        def population(city: str) -> str:
            """How many people live in a city."""
            asked.append(city)
            return "1000"

        agent = agents.Agent(
            name="counter",
            instructions="Be brief.",
            model="demo",
            tools=[agents.function_tool(population)],
        )
        first = await agents.Runner.run(agent, "Count the people.")
        again = [*first.to_input_list(), {"role": "user", "content": "And again?"}]
        second = agents.Runner.run_streamed(agent, again)
        async for _ in second.stream_events():
            pass
        await client.close()
        return first.final_output, second.final_output

    assert asyncio.run(loop()) == (ANSWER, ANSWER)
    assert asked == list(CITIES)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("by_id", [True, False])
def test_langchain_completes_a_loop_of_calls(server: Live, streaming: bool, by_id: bool) -> None:
    chat_models = pytest.importorskip("langchain_openai", reason="needs the extra 'conformance'")
    messages = pytest.importorskip("langchain_core.messages")
    model = chat_models.ChatOpenAI(
        model="demo",
        base_url=server.url,
        api_key="unused",
        streaming=streaming,
        max_retries=0,
        use_responses_api=True,
        use_previous_response_id=by_id,
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
    assert "".join(part["text"] for part in reply.content if part["type"] == "text") == ANSWER
    assert reply.usage_metadata["input_tokens"] > 0


@needs_node
@pytest.mark.parametrize("storing", ["stored", "unstored"])
def test_the_ai_sdk_completes_a_loop_of_calls_and_goes_on(server: Live, storing: str, tmp_path: Path) -> None:
    done = run(["node", NODE / "ai_sdk.mjs", server.url, storing], tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == {"text": ANSWER, "cities": list(CITIES), "steps": len(CITIES) + 1}
    assert second["text"] == ANSWER
    assert second["warnings"] == []
    assert second["usage"]["inputTokens"] > 0


def runs_a_command(request: GenerationRequest) -> Iterable[Event]:
    """Runs a command by codex's own tool, then says what it said; without a wish for it, says hello."""
    prompt = bytes(request.prompt.ids.tolist()).decode()
    yield planned(request)
    yield Progress(0, (ReasoningDelta("Let me see."),))
    if "Run it." not in prompt:
        yield Progress(0, (ContentDelta("Hel"), ContentDelta("lo.")))
    elif "tool: " in prompt:
        said = prompt.rsplit("tool: ", 1)[1].splitlines()
        yield Progress(0, (ContentDelta(f"It said {said[-1] or said[-2]}."),))
    else:
        yield Progress(0, (ToolCallStart(0, f"call_{request.id}", "exec_command"),))
        yield Progress(0, (ToolCallArguments(0, json.dumps({"cmd": "echo from the tool"})),))
        yield Finished(0, "tool_calls", 9, 2)
        return
    yield Finished(0, "stop", 9, 2)


def codex(server: Live, home: Path, *arguments: str, fails: bool = False) -> list[dict[str, Any]]:
    """What ``codex exec`` tells of its run."""
    folder = home / ".codex"
    folder.mkdir(exist_ok=True)
    provider = f'name = "crossturn"\nbase_url = "{server.url}"\nwire_api = "responses"\n'
    (folder / "config.toml").write_text(
        'model = "demo"\nmodel_provider = "crossturn"\nweb_search = "disabled"\n\n'
        f"[model_providers.crossturn]\n{provider}"
    )
    # Where the tests run may be no place for codex' own sandbox; its command is the one above.
    options = ["--skip-git-repo-check", "--sandbox", "danger-full-access", "--json"]
    done = run([BIN / "codex", "exec", *options, *arguments], home, {"CODEX_HOME": str(folder)})
    assert (done.returncode == 0) != fails, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in items if item["type"] == kind]


@needs_node
def test_codex_chats(tmp_path: Path) -> None:
    with live(FakeEngine(runs_a_command), fake_served("demo", context_length=1 << 20)) as server:
        events = codex(server, tmp_path, "Say hello.")
    assert [item["text"] for item in of_kind(events, "agent_message")] == ["Hello."]
    assert [item["text"] for item in of_kind(events, "reasoning")] == ["Let me see."]
    assert events[-1]["usage"]["output_tokens"] == 9


@needs_node
def test_codex_calls_a_tool_and_uses_its_result(tmp_path: Path) -> None:
    with live(FakeEngine(runs_a_command), fake_served("demo", context_length=1 << 20)) as server:
        events = codex(server, tmp_path, "Run it.")
        assert len({request.slot for request in server.engine.requests}) == 1
    (command,) = of_kind(events, "command_execution")
    assert command["exit_code"] == 0
    assert [item["text"] for item in of_kind(events, "agent_message")] == ["It said from the tool."]


@needs_node
def test_codex_says_that_a_thread_is_too_long(tmp_path: Path) -> None:
    with live(FakeEngine(runs_a_command), fake_served("demo", context_length=2000)) as server:
        events = codex(server, tmp_path, "Say hello.", fails=True)
    assert "context window" in events[-1]["error"]["message"]
