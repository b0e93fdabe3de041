"""Keeps a server busy with mixed sessions under eviction, and looks whether it stays right and stays small.

    python bench/soak.py --minutes 30
    python bench/soak.py --minutes 10 --kills 100

Starts ``crossturn serve`` with a small memory budget and a cache folder. Clients lead conversations, edit
them, ask for JSON, for calls of tools and for two replies, leave at a random moment, and send nonsense. Now
and then a reply is compared, word for word, with that of the same conversation in a session of its own that
nobody has used; and in the end so many of them with those of a fresh process. With ``--kills`` the server is
killed so many times at random moments, and started again over its folder. Prints a line every half minute:
requests, faults, memory.

Memory is flat when the slope of what is held, over all that comes after the first third of the time, says
no more growth than a twentieth: of resident memory, and of MLX's arrays. The slope is the median of those
between all pairs of samples (Theil and Sen's), on which a peak has no bearing. Ends with 1 when a reply was
wrong, a request got a 5xx but for 503, something is left running, or memory grew.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Norway": "Oslo", "Japan": "Tokyo"}
QUESTIONS = (
    *(f"What is the capital of {country}?" for country in CAPITALS),
    *(f"What is {a} + {b}?" for a in range(11, 40, 7) for b in range(20, 50, 9)),
    "What is my name?",
    "Where do I live?",
    "Hello!",
)
SYSTEMS = ("", "You are kind. " * 40, "You answer in one short sentence. " * 20)
NONSENSE = (b"{", b"[]", b'{"messages": 0}', b'{"messages": []}', b'{"messages": [{"role": "x"}]}', b"\xff")
JSON = {"Content-Type": "application/json"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ANSWER = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 20}}},
    },
}
EXTRAS: tuple[dict[str, Any], ...] = ({}, {}, {}, {"tools": [WEATHER]}, {"response_format": ANSWER}, {"n": 2})
"""What a conversation asks for besides a reply."""
GROWTH = 0.05
"""Memory may grow by so much of itself while it is judged."""
SAMPLE_S = 10.0
MAX_REPLAYED = 150
"""Replies that a fresh process is asked for in the end."""

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Memory:
    """What a server holds at one moment: seconds since it started, and bytes."""

    at_s: float
    resident: int
    arrays: int
    pooled: int
    conversations: int
    n_files: int
    n_threads: int


class Server:
    """``crossturn serve`` as a process that can be killed and started again."""

    def __init__(self, budget: str, folder: Path | None = None) -> None:
        self._command = [
            sys.executable,
            "-m",
            "server.cli",
            "serve",
            "--port",
            "0",
            "--memory-budget",
            budget,
        ]
        if folder is not None:
            self._command += ["--cache-dir", str(folder), "--cache-dir-size", "200MiB"]
        self.url = ""
        self.start()

    def start(self) -> None:
        """Begin, and return when it is ready."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "is ready at" in line, line
        self.url = line.split()[4].removesuffix("/v1")

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it as an operator does; the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)

    def memory(self, at_s: float) -> Memory:
        """What it holds now."""
        process = Path(f"/proc/{self._process.pid}")
        n_pages = int((process / "statm").read_text().split()[1])
        threads = re.search(r"^Threads:\s+(\d+)", (process / "status").read_text(), re.MULTILINE)
        assert threads is not None
        return Memory(
            at_s,
            n_pages * os.sysconf("SC_PAGE_SIZE"),
            self.figure("array_bytes"),
            self.figure("pooled_bytes"),
            self.figure("memory_bytes"),
            len(list((process / "fd").iterdir())),
            int(threads[1]),
        )

    def figure(self, name: str) -> int:
        """A metric of its own."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        found = re.search(rf"^crossturn_{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return int(float(found[1]))


@dataclass
class Soak:
    """What the clients share."""

    server: Server
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    asked: list[tuple[dict[str, Any], Any]] = field(default_factory=list)
    is_over: bool = False

    def client(self) -> None:
        """Lead conversations until the soak is over."""
        with httpx.Client(timeout=120) as http:
            while not self.is_over:
                try:
                    self._conversation(http, f"soak-{self.chance.randrange(40)}")
                except httpx.HTTPError:
                    self.counts["connections that broke"] += 1
                    time.sleep(0.2)

    def _conversation(self, http: httpx.Client, session: str) -> None:
        system = self.chance.choice(SYSTEMS)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": "Hi! My name is Anna and I live in Oslo."})
        extra = self.chance.choice(EXTRAS)
        for _ in range(self.chance.randrange(1, 7)):
            if self.is_over:
                return
            match self.chance.randrange(12):
                case 0:
                    self._leave(http, messages, session)
                case 1:
                    body = self.chance.choice(NONSENSE)
                    url = f"{self.server.url}/v1/chat/completions"
                    self._count(http.post(url, content=body, headers=JSON))
                case 2 if len(messages) > 3:
                    del messages[self.chance.randrange(2, len(messages)) :]
                    if messages[-1]["role"] != "user":
                        messages.pop()
            body = request_of(messages, extra)
            reply = self.ask(http, body, session)
            if reply is None:
                return
            if self.chance.random() < 0.15:
                self.compare(http, body, reply)
            messages.append({"role": "assistant", "content": reply[0].get("content") or ""})
            messages.append({"role": "user", "content": self.chance.choice(QUESTIONS)})

    def ask(self, http: httpx.Client, body: dict[str, Any], session: str) -> list[dict[str, Any]] | None:
        """The messages that answer ``body``; None where it was refused."""
        answer = http.post(
            f"{self.server.url}/v1/chat/completions", json=body, headers={"X-Session-Id": session}
        )
        self._count(answer)
        if answer.status_code != 200:
            return None
        self.counts[answer.json()["crossturn"]["mode"]] += 1
        return [plain(choice["message"]) for choice in answer.json()["choices"]]

    def compare(self, http: httpx.Client, body: dict[str, Any], reply: list[dict[str, Any]]) -> None:
        """Ask once more, in a session that nobody has used."""
        fresh = self.ask(http, body, f"fresh-{uuid.uuid4().hex}")
        if fresh is None:
            return
        self.counts["compared"] += 1
        if fresh != reply:
            self.wrong.append(f"{body['messages'][-1]['content']!r}: {reply}, in a fresh session {fresh}")
        if len(self.asked) < MAX_REPLAYED:
            self.asked.append((body, reply))
        elif self.chance.random() < 0.1:
            self.asked[self.chance.randrange(MAX_REPLAYED)] = (body, reply)

    def _leave(self, http: httpx.Client, messages: Messages, session: str) -> None:
        """Ask, and be gone at a random moment."""
        body = json.dumps({**request_of(messages), "stream": True}).encode()
        headers = {**JSON, "X-Session-Id": session}
        url = f"{self.server.url}/v1/chat/completions"
        self.counts["left"] += 1
        with contextlib.suppress(httpx.TimeoutException):
            if self.chance.random() < 0.3:
                http.post(url, content=body, headers=headers, timeout=self.chance.uniform(0.001, 0.2))
                return
            n_left = self.chance.randrange(4)
            with http.stream("POST", url, content=body, headers=headers) as answer:
                for i, _ in enumerate(answer.iter_lines()):
                    if i >= n_left:
                        return

    def _count(self, answer: httpx.Response) -> None:
        self.counts[f"status {answer.status_code}"] += 1


def request_of(messages: Messages, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """A body that has one right reply."""
    fixed = {"temperature": 0, "enable_thinking": False, "max_tokens": 40}
    return {"messages": list(messages), **fixed, **(extra or {})}


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """``message`` without what is made up for each reply."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {"content": message.get("content"), "calls": calls}


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """How steeply ``samples`` of (time, value) rise: the median of the slopes between all pairs."""
    pairs = itertools.combinations(samples, 2)
    return statistics.median((b - a) / (t_b - t_a) for (t_a, a), (t_b, b) in pairs)


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--budget", default="48MiB")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return soak(Server(options.budget, Path(folder)), options)


def soak(server: Server, options: argparse.Namespace) -> int:
    """Keep ``server`` busy for as long as it is to be."""
    run = Soak(server, random.Random(options.seed))
    clients = [threading.Thread(target=run.client, daemon=True) for _ in range(options.clients)]
    for client in clients:
        client.start()
    begun, told_s, n_kills = time.monotonic(), 0.0, 0
    memory: list[Memory] = []
    span_s = options.minutes * 60
    while (elapsed := time.monotonic() - begun) < span_s:
        if n_kills < options.kills:
            time.sleep(run.chance.uniform(0.1, span_s / options.kills))
            server.kill()
            n_kills += 1
            server.start()
        else:
            time.sleep(min(SAMPLE_S, span_s - elapsed))
            memory.append(server.memory(elapsed))
        if elapsed >= told_s:
            told_s += 30
            print(f"{elapsed / 60:5.1f} min  {dict(sorted(run.counts.items()))}", memory[-1:], flush=True)
    run.is_over = True
    for client in clients:
        client.join()
    n_left = server.figure("requests_running") + server.figure("requests_waiting")
    status = server.stop()
    replay(run)
    return verdict(run, memory if not options.kills else [], n_kills, n_left, status)


def replay(run: Soak) -> None:
    """Ask a fresh process for what the soaked one was asked for."""
    run.server = Server("1GiB")
    with httpx.Client(timeout=120) as http:
        for body, reply in run.asked:
            cold = run.ask(http, body, uuid.uuid4().hex)
            run.counts["replayed"] += 1
            if cold != reply:
                run.wrong.append(f"{body['messages'][-1]['content']!r}: {reply}, in a fresh process {cold}")
    run.server.stop()


def verdict(run: Soak, memory: list[Memory], n_kills: int, n_left: int, status: int) -> int:
    """Print what was seen; 0 when all is well."""
    bad = {name: n for name, n in run.counts.items() if name.startswith("status 5") and name != "status 503"}
    print(f"killed {n_kills} times; {dict(sorted(run.counts.items()))}")
    print(f"wrong replies: {run.wrong or 'none'}; other faults: {bad or 'none'}; exit status {status}")
    print(f"left running or waiting: {n_left}")
    settled = memory[len(memory) // 3 :]
    has_grown = len(settled) > 2 and max(growth_of(settled, name) for name in ("resident", "arrays")) > GROWTH
    for name in ("resident", "arrays", "pooled", "conversations") if len(settled) > 2 else ():
        values = [getattr(sample, name) / 2**20 for sample in settled]
        grown = growth_of(settled, name)
        span_min = (settled[-1].at_s - settled[0].at_s) / 60
        print(
            f"{name}: {min(values):.1f} to {max(values):.1f} MiB, median {statistics.median(values):.1f}, "
            f"slope {grown:+.2%} over {span_min:.0f} minutes"
        )
    for name in ("n_files", "n_threads") if settled else ():
        print(f"{name}: {getattr(settled[0], name)} before, {getattr(settled[-1], name)} after")
    return int(bool(run.wrong or bad or n_left or has_grown or status))


def growth_of(settled: Sequence[Memory], name: str) -> float:
    """By what part of itself ``name`` grew while it was judged, by its slope."""
    samples = [(sample.at_s, float(getattr(sample, name))) for sample in settled]
    rise = slope(samples) * (settled[-1].at_s - settled[0].at_s)
    return rise / max(statistics.median(value for _, value in samples), 1.0)


if __name__ == "__main__":
    sys.exit(main())
