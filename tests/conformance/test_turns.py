"""What agents read per turn, over ten turns of a loop of calls: what is new, and hardly more."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.settings import Settings
from tests.conformance.programs import NODE, needs_node, run
from tests.conformance.test_responses_agents import codex
from tests.fakes.live_server import Live
from tests.fakes.measured import MeasuredTurn, measured_demo
from tests.fakes.scripted import xml_call

pytestmark = [
    pytest.mark.conformance,
    # What these packages and their dependencies warn of is not ours to mend.
    pytest.mark.filterwarnings("default"),
]
N_TURNS = 10
N_OVER = 32
"""Tokens that a turn may read beyond what is new."""
THOUGHT = "Let me see what comes next.\n</think>\n\n"


def asks_in_turn(name: str, parameter: str, value: Callable[[int], str]) -> Callable[[str], str]:
    """Calls the tool in every turn but the last."""

    def write(prompt: str) -> str:
        n_results = prompt.count("<tool_response>")
        thought = THOUGHT if prompt.endswith("<think>\n") else ""
        if n_results == N_TURNS - 1:
            return f"{thought}All is done."
        return thought + xml_call(name, **{parameter: value(n_results)})

    return write


def check(name: str, turns: Sequence[MeasuredTurn]) -> None:
    """Print the row of docs/clients.md, and hold every turn but the first to what is new."""
    assert len(turns) == N_TURNS
    print(f"\n{name}: prompt {turns[0].n_prompt} to {turns[-1].n_prompt}")
    print("  new ", *(f"{turn.n_new:5d}" for turn in turns))
    print("  read", *(f"{turn.n_read:5d}" for turn in turns))
    for turn in turns[1:]:
        assert turn.n_read <= turn.n_new + N_OVER


@needs_node
def test_codex(tmp_path: Path) -> None:
    write = asks_in_turn("exec_command", "cmd", lambda n: f"echo step {n}")
    with measured_demo(write, Settings(idle_prefill=False)) as (server, turns):
        codex(server, tmp_path, "Go through all the steps.")
    check("codex", turns)


@needs_node
@pytest.mark.parametrize("storing", ["stored", "unstored"])
def test_the_ai_sdk(tmp_path: Path, storing: str) -> None:
    write = asks_in_turn("population", "city", lambda n: f"Rome {n}")
    with measured_demo(write, Settings(idle_prefill=False)) as (server, turns):
        done = run(["node", NODE / "ai_sdk.mjs", server.url, storing, "1"], tmp_path)
        assert done.returncode == 0, done.stderr
    check(f"@ai-sdk/openai, {storing}", turns)


def openai_agents(server: Live) -> None:
    agents = pytest.importorskip("agents", reason="needs the extra 'conformance'")
    openai = pytest.importorskip("openai")
    import asyncio

    async def loop() -> None:
        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=server.url, api_key="unused", max_retries=0)
        agents.set_default_openai_client(client, use_for_tracing=False)

        def population(city: str) -> str:
            """How many people live in a city."""
            return f"1000 in {city}"

        tools = [agents.function_tool(population)]
        agent = agents.Agent(name="counter", instructions="Be brief.", model="demo", tools=tools)
        await agents.Runner.run(agent, "Count the people.", max_turns=N_TURNS + 1)
        await client.close()

    asyncio.run(loop())


def langchain(server: Live) -> None:
    chat_models = pytest.importorskip("langchain_openai", reason="needs the extra 'conformance'")
    messages = pytest.importorskip("langchain_core.messages")
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "population", "parameters": schema}}
    model = chat_models.ChatOpenAI(
        model="demo", base_url=server.url, api_key="unused", max_retries=0, use_responses_api=True
    ).bind_tools([tool])
    history: list[Any] = [messages.HumanMessage("Count the people.")]
    while calls := (reply := model.invoke(history)).tool_calls:
        history.append(reply)
        history += [messages.ToolMessage(json.dumps(call["args"]), tool_call_id=call["id"]) for call in calls]


@pytest.mark.parametrize("agent", [openai_agents, langchain])
def test_python_agents(agent: Callable[[Live], None]) -> None:
    write = asks_in_turn("population", "city", lambda n: f"Rome {n}")
    with measured_demo(write, Settings(idle_prefill=False)) as (server, turns):
        agent(server)
    check(agent.__name__, turns)
