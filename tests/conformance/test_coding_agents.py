"""Coding agents, started by ``crossturn launch``, chat, call tools and compact against this server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.errors import PromptTooLongError
from model.text.chat import RenderedPrompt
from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import Event, Finished, GenerationRequest, Progress
from tests.conformance.programs import BIN, needs_node, run
from tests.fakes.cache_kit import make_store
from tests.fakes.fake_engine import FakeChat, FakeEngine, fake_served, planned
from tests.fakes.live_server import Live, live

pytestmark = [pytest.mark.conformance, needs_node]

ROOT = Path(__file__).parents[2]
COMMAND = {"command": "echo from the tool", "description": "Say it"}
WIDE = 1 << 20
RUN_IT = "Run it please."
SHELL_TOOLS = {"claude": "Bash", "opencode": "bash", "qwen": "run_shell_command", "pi": "bash"}
ASKED: dict[str, tuple[str, ...]] = {
    "claude": ("--allowedTools", "Bash", "-p"),
    "opencode": ("run",),
    "qwen": ("--approval-mode", "yolo", "-p"),
    "pi": ("-p",),
}
"""How each is given one request, which it answers and ends."""


def text_of(request: GenerationRequest) -> str:
    return bytes(request.prompt.ids.tolist()).decode()


def works(request: GenerationRequest) -> Iterable[Event]:
    """Says hello; wherever it is told to run something, runs it once by the agent's own tool and tells what
    that said."""
    prompt = text_of(request)
    names = {tool["function"]["name"] for tool in request.reply.tools or ()}  # type: ignore[index]
    shell = next((name for name in SHELL_TOOLS.values() if name in names), None)
    yield planned(request)
    yield Progress(0, (ReasoningDelta("Let me see."),))
    if shell and "tool: " in prompt:
        said = "from the tool" if "from the tool" in prompt.rsplit("tool: ", 1)[1] else "nothing"
        yield Progress(0, (ContentDelta(f"It said {said}."),))
    elif shell and RUN_IT in prompt:
        yield Progress(0, (ToolCallStart(0, f"call_{request.id[-12:]}", shell),))
        yield Progress(0, (ToolCallArguments(0, json.dumps(COMMAND)),))
        yield Finished(0, "tool_calls", 9, 2)
        return
    else:
        yield Progress(0, (ContentDelta("Hel"), ContentDelta("lo.")))
    yield Finished(0, "stop", 9, 2)


def launch(
    server: Live, home: Path, name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Start an agent as a person would."""
    node = run(["which", "node"], home).stdout.strip()
    path = os.pathsep.join([str(BIN), str(Path(node).parent), "/usr/bin", "/bin"])
    command = [sys.executable, "-m", "server.cli", "launch", name, "--url", server.url, "--", *arguments]
    return run(command, home, {"PATH": path, "PYTHONPATH": str(ROOT), **(environment or {})})


@pytest.mark.parametrize("name", SHELL_TOOLS)
def test_an_agent_chats(name: str, tmp_path: Path) -> None:
    with live(FakeEngine(works, store=make_store()), fake_served("demo", context_length=WIDE)) as server:
        done = launch(server, tmp_path, name, *ASKED[name], "Say hello.")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hello." in done.stdout
    assert "crossturn: " in done.stderr


@pytest.mark.parametrize("name", SHELL_TOOLS)
def test_an_agent_calls_a_tool_and_uses_its_result(name: str, tmp_path: Path) -> None:
    with live(FakeEngine(works, store=make_store()), fake_served("demo", context_length=WIDE)) as server:
        done = launch(server, tmp_path, name, *ASKED[name], RUN_IT)
        requests = server.engine.requests
    assert done.returncode == 0, done.stdout + done.stderr
    assert "It said from the tool." in done.stdout
    assert len({request.slot for request in requests}) == 1
    assert all(str(request.slot) != "0" * 16 for request in requests)


class Narrow(FakeChat):
    """Refuses prompts that are longer than ``limit``, less than the server tells, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = WIDE
        self.n_refused = 0

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int | None = None, **options: Any
    ) -> RenderedPrompt:
        prompt = super().render(messages, max_tokens=max_tokens, **options)
        if max_tokens is not None and len(prompt.ids) > self.limit:
            self.n_refused += 1
            raise PromptTooLongError(len(prompt.ids), self.limit)
        return prompt


def summarises(request: GenerationRequest) -> Iterable[Event]:
    """Says hello, and sums up where it is asked for that."""
    yield planned(request)
    wants = "summar" in text_of(request)[-8000:].lower()
    yield Progress(0, (ContentDelta("<summary>They said hello.</summary>" if wants else "Hello."),))
    yield Finished(0, "stop", 9, 2)


@pytest.mark.parametrize(
    ("name", "goes_on", "n_room"),
    [("claude", ("-c", "-p"), 8_000), ("opencode", ("run", "--continue"), 20_000)],
)
def test_an_agent_compacts_when_the_prompt_is_too_long(
    name: str, goes_on: tuple[str, ...], n_room: int, tmp_path: Path
) -> None:
    chat = Narrow()
    served = replace(fake_served("demo", context_length=WIDE), chat=chat)
    with live(FakeEngine(summarises, store=make_store()), served) as server:
        launch(server, tmp_path, name, *ASKED[name], "Hello " + "a" * 12_000)
        launch(server, tmp_path, name, *goes_on, "Hello again")
        # Room for a request to sum up, and for the next question behind a summary, but not for it now.
        before = server.engine.requests[:]
        chat.limit = max(len(request.prompt.ids) for request in before) + n_room
        done = launch(server, tmp_path, name, *goes_on, "Hello " + "b" * (n_room + 2_000))
        prompts = [text_of(request) for request in server.engine.requests[len(before) :]]
    assert "Hello." in done.stdout, done.stdout + done.stderr
    assert chat.n_refused == 1
    assert "They said hello." in prompts[-1]
    assert "aaaa" not in prompts[-1]
