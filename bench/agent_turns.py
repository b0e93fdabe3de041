"""What real coding agents read of their prompts over ten turns, and what of that was new.

    python bench/agent_turns.py --bin node_modules/.bin claude codex opencode qwen pi

Each agent runs for real, in an empty home, against the real server: HTTP, dialect, template, planner, store.
Only the model is left out: states are counted, and every reply is written by rule. Each turn a person asks
for a command to be run; the agent is told to call its own tool for it, and then sums up what that said.
Nothing is read between turns. Printed are, by turn, the tokens of all prompts, those that were in none
before, and those that were read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import uvicorn
from counted_state import QWEN_4B, CountedState
from replay import METADATA

from cache.boundaries import due_while_decoding
from cache.planner import TokenIds, longest_common_token_prefix
from cache.ring import RingLimits
from cache.store import Store
from model.checkpoint.hub import resolve
from model.text.chat import ChatFormat
from model.text.grammar.compiler import GrammarCompiler
from model.text.reply import ReplyReader
from model.text.tokenizer import TextTokenizer
from server.client import EngineStats, ModelInfo
from server.commands.agents import AGENTS, Place
from server.engine.planning import plan_report, prompt_shape
from server.events import Emit, Finished, GenerationRequest, Planned, Progress, WarmRequest
from server.http.app import create_app
from server.http.gateway import Gateway
from server.settings import Settings
from server.turn.served import Served

T = TypeVar("T")

SHELLS = ("Bash", "bash", "run_shell_command", "exec_command", "shell")
ASKS = {
    "claude": (("--allowedTools", "Bash", "-p"), ("--allowedTools", "Bash", "-c", "-p")),
    "codex": (("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"), None),
    "opencode": (("run",), ("run", "--continue")),
    "qwen": (("--approval-mode", "yolo", "-p"), ("--approval-mode", "yolo", "--continue", "-p")),
    "pi": (("-p",), ("-c", "-p")),
}
"""The first turn's arguments, and those of every further one."""
CODEX_AGAIN = ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "resume", "--last")
CONTEXT = 1 << 20
THOUGHT = ("The user wants a command to be run, so I look at what it says before I answer. " * 3).strip()
SUMMARY = (
    "The command has run without an error, and this is what it said; nothing else was changed. " * 3
).strip()


@dataclass
class Turn:
    """Tokens of one turn's prompts."""

    n_prompt: int = 0
    n_new: int = 0
    n_read: int = 0
    n_requests: int = 0


@dataclass
class CountedEngine:
    """Implements ``server.client.EngineClient`` without a model: only the store is real."""

    tokenizer: TextTokenizer
    turns: list[Turn] = field(default_factory=list)
    n_steps: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: list[TokenIds] = []
        self._store = Store(
            METADATA,
            budget_bytes=64 * 1024**3,
            ring_limits=RingLimits(),
            share_prefixes=True,
            clock=self._tick,
            new_state=lambda: CountedState(QWEN_4B),
        )

    def _tick(self) -> float:
        return float(self.n_steps)

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        threading.Thread(target=self._answer, args=(request, emit), daemon=True).start()

    def read_ahead(self, request: WarmRequest) -> None:
        """Nothing is read between turns."""

    def cancel(self, request_id: str) -> None:
        """Every request is over at once."""

    def call(self, fn: Callable[[Store], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            future.set_result(fn(self._store))
        return future

    def stats(self) -> EngineStats:
        return EngineStats(n_steps=self.n_steps, n_running=0, n_waiting=0)

    def _answer(self, request: GenerationRequest, emit: Emit) -> None:
        with self._lock:
            self.n_steps += 1
            self._play(request, emit)

    def _play(self, request: GenerationRequest, emit: Emit) -> None:
        ids = request.prompt.ids
        choice = self._store.plan(request.slot, ids, prompt_shape(request.prompt))
        emit(Planned(plan_report(choice, request.prompt, self.tokenizer.decode)))
        known = max((longest_common_token_prefix(ids, seen) for seen in self._seen), default=0)
        running = self._store.take(choice)
        state = running.state
        assert isinstance(state, CountedState)
        rest = ids[len(running) :]
        turn = self.turns[-1]
        turn.n_prompt += len(ids)
        turn.n_new += len(ids) - known
        turn.n_read += len(rest)
        turn.n_requests += 1
        state.feed(len(rest))
        running.ids.extend(rest)
        for position in choice.captures:
            running.capture(state.checkpoint_at(position))
        written = self.tokenizer.encode(self._reply(request))
        newest = len(running)
        for token in (*written.tolist(), self._end):
            state.feed(1)
            running.ids.append(token)
            if due_while_decoding(len(running), newest):
                newest = len(running)
                running.capture(state.snapshot())
        self._seen.append(running.ids.view.copy())
        self._store.save(running)
        reader = ReplyReader(
            self.tokenizer, opens_thought=request.prompt.opens_thought, tools=request.reply.tools
        )
        deltas = [*reader.push_all(written.tolist()), *reader.finish()]
        emit(Progress(0, tuple(deltas)))
        reason = "tool_calls" if reader.called_tools else "stop"
        emit(Finished(0, reason, len(written) + 1, reader.n_reasoning_tokens))

    @property
    def _end(self) -> int:
        return int(self.tokenizer.controls["<|im_end|>"].id)

    def _reply(self, request: GenerationRequest) -> str:
        """A call where a person has asked for a command and none has run, else a summary."""
        head = f"{THOUGHT}\n</think>\n\n" if request.prompt.opens_thought else ""
        names = {str(tool["function"]["name"]) for tool in request.reply.tools or ()}  # type: ignore[index]
        shell = next((name for name in SHELLS if name in names), None)
        tail = self.tokenizer.decode(request.prompt.ids[-3000:].tolist())
        wanted = tail.rfind("Run command number")
        if request.reply.grammar is not None and shell is None:
            return '{"title": "Running commands"}'
        if shell is None or wanted < 0 or "<tool_response>" in tail[wanted:]:
            return head + SUMMARY
        number = tail[wanted:].split()[3].strip(".,\"'")
        key = "cmd" if shell == "exec_command" else "command"
        told = f"<parameter={key}>\nseq {number}00 {number}99\n</parameter>\n"
        if shell in ("Bash", "bash"):
            told += "<parameter=description>\nList the numbers\n</parameter>\n"
        return f"{head}<tool_call>\n<function={shell}>\n{told}</function>\n</tool_call>"


def main() -> None:
    """Print a table for each agent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agents", nargs="+", choices=list(ASKS))
    parser.add_argument("--bin", type=Path, required=True, help="where the agents' programs are")
    parser.add_argument("--turns", type=int, default=10)
    chosen = parser.parse_args()
    for name in chosen.agents:
        turns = measure(name, chosen.bin.resolve(), chosen.turns)
        print(f"{name}:", flush=True)
        for number, turn in enumerate(turns, 1):
            print(
                f"  turn {number:2}: {turn.n_requests} requests, {turn.n_prompt:7,} tokens, "
                f"{turn.n_new:6,} new, {turn.n_read:6,} read",
                flush=True,
            )
        later = turns[1:]
        n_new, n_read = sum(turn.n_new for turn in later), sum(turn.n_read for turn in later)
        print(
            f"  turns 2 to {len(turns)}: {n_new:,} new, {n_read:,} read, {n_read / max(1, n_new):.3f} a token"
        )


def measure(name: str, programs: Path, n_turns: int) -> list[Turn]:
    """Run an agent for ``n_turns`` in a home of its own."""
    path = resolve("demo")
    tokenizer = TextTokenizer.from_dir(path)
    engine = CountedEngine(tokenizer)
    info = ModelInfo(
        name="demo", context_length=CONTEXT, device="none", budget_bytes=1 << 40, vocab_size=4096
    )
    grammars = GrammarCompiler(tokenizer, info.vocab_size)
    served = Served(
        names=("demo",),
        created=0,
        info=info,
        chat=ChatFormat(tokenizer),
        tokens=tokenizer,
        grammars=grammars,
    )
    gateway = Gateway(engine, served, Settings(idle_prefill=False))
    with socket.socket() as listener, tempfile.TemporaryDirectory() as home:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(gateway), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        for number in range(1, n_turns + 1):
            engine.turns.append(Turn())
            ask(name, programs, Path(home), url, number)
        server.should_exit = True
        thread.join()
    gateway.close()
    grammars.close()
    return engine.turns


def ask(name: str, programs: Path, home: Path, url: str, number: int) -> None:
    """One turn of an agent."""
    folder, work = home / "settings", home / "work"
    for path in (folder, work):
        path.mkdir(exist_ok=True)
    place = Place(
        url=url, key=None, model="demo", context_length=CONTEXT, session=f"bench-{name}", folder=folder
    )
    setup = AGENTS[name].setup(place)
    for file, text in setup.files.items():
        (folder / file).write_text(text, encoding="utf-8")
    first, again = ASKS[name]
    arguments = first if number == 1 else again or CODEX_AGAIN
    node = shutil.which("node")
    assert node is not None
    environment = {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(programs), str(Path(node).parent), "/usr/bin", "/bin"]),
        **{key: value for key, value in setup.environment.items() if value},
    }
    command = [
        programs / AGENTS[name].program,
        *setup.arguments,
        *arguments,
        f"Run command number {number} please.",
    ]
    done = subprocess.run(
        command,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
        check=False,
    )
    if done.returncode:
        print(done.stdout.decode()[-500:], done.stderr.decode()[-500:], file=sys.stderr)


if __name__ == "__main__":
    main()
