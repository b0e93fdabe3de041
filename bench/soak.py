"""Keeps a server busy with mixed sessions under eviction, and looks whether it stays right and stays small.

    python bench/soak.py --minutes 30
    python bench/soak.py --minutes 5 --kills 100

Starts ``crossturn serve`` with a small memory budget and a cache folder. Clients lead conversations, edit
them, leave at a random moment, and send nonsense. Now and then a reply is compared, word for word, with that
of the same conversation in a session of its own that nobody has used. With ``--kills`` the server is killed
so many times at random moments, and started again over its folder. Prints a line every half minute:
requests, faults, memory. Ends with 1 when a reply was wrong, a request got a 5xx but for 503, or memory grew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
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
GROWTH = 1.25
"""Memory may be so many times what it was after the first third."""


class Server:
    """``crossturn serve`` as a process that can be killed and started again."""

    def __init__(self, folder: Path, budget: str) -> None:
        command = [sys.executable, "-m", "server.cli", "serve", "--port", "0", "--memory-budget", budget]
        self._command = [*command, "--cache-dir", str(folder), "--cache-dir-size", "200MiB"]
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

    @property
    def n_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Soak:
    """What the clients share."""

    server: Server
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    is_over: bool = False
    is_killing: bool = False

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
            reply = self._ask(http, messages, session)
            if reply is None:
                return
            if self.chance.random() < 0.15:
                self._compare(http, messages, reply)
            messages.append({"role": "assistant", "content": reply})
            messages.append({"role": "user", "content": self.chance.choice(QUESTIONS)})

    def _ask(self, http: httpx.Client, messages: list[dict[str, str]], session: str) -> str | None:
        body = self._body(messages)
        answer = http.post(
            f"{self.server.url}/v1/chat/completions", json=body, headers={"X-Session-Id": session}
        )
        self._count(answer)
        if answer.status_code != 200:
            return None
        self.counts[answer.json()["crossturn"]["mode"]] += 1
        return str(answer.json()["choices"][0]["message"]["content"] or "")

    def _compare(self, http: httpx.Client, messages: list[dict[str, str]], reply: str) -> None:
        fresh = self._ask(http, messages, f"fresh-{uuid.uuid4().hex}")
        if fresh is not None:
            self.counts["compared"] += 1
            if fresh != reply:
                self.wrong.append(f"{messages[-1]['content']!r}: {reply!r}, in a fresh session {fresh!r}")

    def _leave(self, http: httpx.Client, messages: list[dict[str, str]], session: str) -> None:
        """Ask, and be gone at a random moment."""
        body = json.dumps({**self._body(messages), "stream": True}).encode()
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

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"messages": messages, "temperature": 0, "enable_thinking": False, "max_tokens": 40}

    def _count(self, answer: httpx.Response) -> None:
        self.counts[f"status {answer.status_code}"] += 1


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
        return soak(Server(Path(folder), options.budget), options)


def soak(server: Server, options: argparse.Namespace) -> int:
    """Keep ``server`` busy for as long as it is to be."""
    run = Soak(server, random.Random(options.seed))
    clients = [threading.Thread(target=run.client, daemon=True) for _ in range(options.clients)]
    for client in clients:
        client.start()
    begun, memory, n_kills = time.monotonic(), [], 0
    span_s = options.minutes * 60
    while (elapsed := time.monotonic() - begun) < span_s:
        if options.kills and n_kills < options.kills:
            time.sleep(run.chance.uniform(0.1, span_s / options.kills))
            server.kill()
            n_kills += 1
            server.start()
            continue
        time.sleep(min(30.0, span_s - elapsed))
        memory.append(server.n_bytes)
        print(
            f"{elapsed / 60:5.1f} min  {memory[-1] >> 20} MiB  {dict(sorted(run.counts.items()))}", flush=True
        )
    run.is_over = True
    for client in clients:
        client.join()
    status = server.stop()
    return verdict(run, memory, n_kills, status)


def verdict(run: Soak, memory: list[int], n_kills: int, status: int) -> int:
    """Print what was seen; 0 when all is well."""
    bad = {name: n for name, n in run.counts.items() if name.startswith("status 5") and name != "status 503"}
    settled = memory[len(memory) // 3 :]
    has_grown = len(settled) > 1 and settled[-1] > GROWTH * settled[0]
    print(f"killed {n_kills} times; {dict(sorted(run.counts.items()))}")
    print(f"wrong replies: {run.wrong or 'none'}; other faults: {bad or 'none'}; exit status {status}")
    if settled:
        print(f"memory after a third of the time {settled[0] >> 20} MiB, at the end {settled[-1] >> 20} MiB")
    return int(bool(run.wrong or bad or has_grown or status))


if __name__ == "__main__":
    sys.exit(main())
