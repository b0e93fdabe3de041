"""A server that is killed inside its disk writes: no wrong reply after it, and nothing lost that was whole.

``scripts/test tests/reliability/test_kills.py -s --kills 100`` takes some ten minutes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cache.disk import blob
from cache.disk.manifest import Manifest, best_match, from_facts
from cache.planner import SlotKey, TokenIds
from cache.store import MIN_RECALL_TOKENS
from tests.fakes import suicide
from tests.fakes.process import NotReadyError, Process, serving
from tests.fakes.suicide import POINTS

SYSTEM = {"role": "system", "content": "You are kind, and you answer in one short sentence. " * 12}
QUESTIONS = (
    "What is the capital of Italy?",
    "What is 11 + 20?",
    "What is my name?",
    "Where do I live?",
    "Hello!",
)
N_SESSIONS = 6


def whole(folder: Path) -> dict[str, Manifest]:
    """The conversations in ``folder`` of which every file is there and undamaged, by their file's name."""
    found = {}
    for path in sorted((folder / "conversations").glob("*")):
        if path.name.endswith(blob.TEMPORARY):
            continue
        _, facts, buffers = blob.unpack(path.name, path.read_bytes())
        manifest = from_facts(facts, buffers["ids"].astype(np.uint32))
        for name in manifest.file_names:
            blob.unpack(name, (folder / "content" / name).read_bytes())
        found[path.name] = manifest
    return found


class Sessions:
    """Conversations that are led over all the lives of a server, and what a fresh process says to them."""

    def __init__(self, fresh: Process) -> None:
        self._fresh = fresh
        self.talks: list[list[dict[str, Any]]] = [[] for _ in range(N_SESSIONS)]
        self.done: Counter[str] = Counter()

    def take_turn(self, server: Process, number: int, chance: random.Random) -> None:
        """The next turn of a session, whose reply must be that of a fresh process."""
        talk = self.talks[number]
        if not talk or len(talk) > 14:
            name = chance.choice(("Anna", "Ole", "Kim"))
            talk[:] = [SYSTEM, {"role": "user", "content": f"Hi! My name is {name} and I live in Oslo."}]
        elif chance.random() < 0.15 and len(talk) > 4:
            del talk[-2:]  # an edit: another last question
            talk[-1] = {"role": "user", "content": chance.choice(QUESTIONS)}
        body = server.ask(talk, f"session-{number}")
        self.check(body, talk)
        self.done[body["crossturn"]["mode"]] += 1
        talk.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
        talk.append({"role": "user", "content": chance.choice(QUESTIONS)})

    def check(self, body: dict[str, Any], talk: list[dict[str, Any]]) -> None:
        """That a reply is what a process without any memory of it says."""
        self.done["replies compared"] += 1
        cold = self._fresh.ask(talk, f"cold-{self.done['replies compared']}")
        assert body["choices"][0]["message"] == cold["choices"][0]["message"], talk

    def find_again(self, server: Process, kept: dict[str, Manifest]) -> None:
        """Each session that is on the disk goes on from there, and as a fresh process would."""
        for number, talk in enumerate(self.talks):
            if not talk:
                continue
            slot = SlotKey.for_session(None, f"session-{number}")
            theirs = [manifest for manifest in kept.values() if manifest.slot == slot]
            found = best_match(theirs, ids_of(server, talk))
            body = server.ask(talk, f"session-{number}")
            self.check(body, talk)
            if found is not None and found.state.length >= MIN_RECALL_TOKENS:
                assert body["crossturn"]["reused_tokens"] >= found.state.length
                self.done["found again"] += 1


def ids_of(server: Process, talk: list[dict[str, Any]]) -> TokenIds:
    """The prompt of ``talk``."""
    body = {"messages": talk, "chat_template_kwargs": {"enable_thinking": False}}
    tokens = httpx.post(f"{server.url}/tokenize", json=body, timeout=60).json()["tokens"]
    return np.array(tokens, np.uint32)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server that shares nothing between sessions."""
    log = tmp_path_factory.mktemp("fresh") / "log"
    with serving(log, "--no-share-prefixes", "--memory-budget", "64MiB") as process:
        yield process


@pytest.mark.slow
def test_a_kill_inside_a_disk_write_costs_no_conversation_and_no_right_reply(
    fresh: Process, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    n_kills = request.config.getoption("--kills")
    chance, sessions = random.Random(n_kills), Sessions(fresh)
    folder, log = tmp_path / "cache", tmp_path / "log"
    for number in range(n_kills):
        point = POINTS[number % len(POINTS)]
        n = chance.randrange(1, 9 if point in ("deleting", "deleted") else 30)
        with suppress(NotReadyError):  # killed while it tidied up
            live_until_killed(sessions, point, n, folder, log, chance)
    told = log.read_text()
    assert "damaged" not in told
    assert "Traceback" not in told
    print(dict(sessions.done))
    assert sessions.done["found again"] > 0
    assert sessions.done["killed inside a write"] > 0


def live_until_killed(
    sessions: Sessions, point: str, n: int, folder: Path, log: Path, chance: random.Random
) -> None:
    """One life of the server over ``folder``, which ends at ``point`` of its ``n``-th write."""
    kept = whole(folder)
    command = (sys.executable, suicide.__file__, point, str(n), "serve")
    options = ("--cache-dir", str(folder), "--memory-budget", "24MiB", "--cache-dir-size", "1GiB")
    environment = {**os.environ, "PYTHONPATH": str(Path(suicide.__file__).parents[2])}
    with serving(log, *options, command=command, environment=environment) as server:
        assert kept.keys() <= {path.name for path in (folder / "conversations").iterdir()}
        killing = threading.Timer(chance.uniform(2, 6), server.popen.kill)
        killing.start()  # where the point is not reached
        try:
            sessions.find_again(server, kept)
            while True:
                sessions.take_turn(server, chance.randrange(N_SESSIONS), chance)
                time.sleep(chance.choice((0, 0, 0.1)))
        except httpx.TransportError:
            sessions.done["killed inside a write" if killing.is_alive() else "killed at a moment"] += 1
        killing.cancel()
        killing.join()
        assert server.popen.wait(timeout=60) == -signal.SIGKILL
