"""Warm equals cold across restarts: what the cache folder brings back replies as a fresh process does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from driver import Driver
from test_engine_warm_equals_cold import SCENARIO, Act, MakeLoop, Step, Walk

from cache.planner import CrossTurnSlotId

N_SESSIONS = 3


class RestartedWalk(Walk):
    """A walk whose warm process ends now and then, and begins again over the same folder."""

    def __init__(self, make_loop: MakeLoop, folder: Path, *, budget_bytes: int = 2**30) -> None:
        super().__init__(make_loop)
        self._open: Callable[[], Driver] = lambda: Driver(
            make_loop(budget_bytes=budget_bytes, cache_dir=folder)
        )
        self._warm = self._open()

    def restart(self) -> None:
        self._warm.loop.store.disk.close()
        self._warm = self._open()

    def fork(self, source: int, target: int) -> None:
        """A session goes on under another key as well."""
        keys = [CrossTurnSlotId.for_session(None, f"session-{i}") for i in (source, target)]
        if source != target:
            self._warm.loop.store.fork(*keys)

    def close(self) -> None:
        self._warm.loop.store.disk.close()


def random_steps(chance: random.Random, n: int) -> list[Step]:
    return [
        Step(
            chance.choice(get_args(Act)),
            chance.randrange(N_SESSIONS),
            chance.randrange(1, 90),
            chance.randrange(10_000),
        )
        for _ in range(n)
    ]


def walk_with_restarts(
    make_loop: MakeLoop, folder: Path, script: list[Step], chance: random.Random, budget_bytes: int = 2**30
) -> None:
    walk = RestartedWalk(make_loop, folder, budget_bytes=budget_bytes)
    for step in script:
        if chance.random() < 0.15:
            walk.restart()
        if chance.random() < 0.05:
            walk.fork(chance.randrange(N_SESSIONS), chance.randrange(N_SESSIONS))
        walk.take(step)
    walk.close()


def test_a_day_with_restarts_replies_as_fresh_processes_do(make_loop: MakeLoop, tmp_path: Path) -> None:
    walk_with_restarts(make_loop, tmp_path, SCENARIO, random.Random(3))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "budget_bytes"), [(1, 2**30), (2, 600_000), (3, 150_000)])
def test_random_operations_with_restarts_and_evictions_reply_as_fresh_processes_do(
    make_loop: MakeLoop, tmp_path: Path, seed: int, budget_bytes: int
) -> None:
    chance = random.Random(seed)
    walk_with_restarts(make_loop, tmp_path, random_steps(chance, 30), chance, budget_bytes)


def test_a_conversation_is_not_read_again_after_a_restart(make_loop: MakeLoop, tmp_path: Path) -> None:
    prompt = [5 + i % 40 for i in range(700)]
    first = Driver(make_loop(cache_dir=tmp_path))
    reply = first.ask(prompt, session="a").token_ids[0]
    first.loop.store.disk.close()
    second = Driver(make_loop(cache_dir=tmp_path))
    outcome = second.ask([*prompt, *reply, 7, 8], session="a")
    assert outcome.report.mode == "ExactAppend"
    assert outcome.report.reused_tokens == len(prompt) + len(reply)
    assert outcome.token_ids[0] == Driver(make_loop()).ask([*prompt, *reply, 7, 8]).token_ids[0]
    second.loop.store.disk.close()
