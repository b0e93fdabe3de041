"""Warm equals cold across restarts: what the cache folder brings back replies as a fresh process does.

``scripts/test tests/engine/test_disk.py -m slow -s --operations 2000`` takes a longer walk and tells what it
did.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest

from cache.planner import SlotKey
from cache.store import BudgetError
from cache.travel import unpack
from model.codec import StateCodec
from model.state import Checkpoint, Recurrent, State
from tests.engine.test_warm_equals_cold import SCENARIO, Act, MakeLoop, Step, Walk, wild_drafts
from tests.fakes.driver import Driver

N_SESSIONS = 3
N_TOGETHER = 30
"""Operations of one walk: conversations that go on for longer reach the tiny model's context."""

BUDGETS = (2**30, 600_000, 150_000)


class RestartedWalk(Walk):
    """A walk whose warm process ends now and then, and begins again over the same folder. It guesses wildly
    how replies go on; fresh processes do not guess.

    Attributes:
        done: what happened, by name.
    """

    def __init__(self, make_loop: MakeLoop, folder: Path, *, budget_bytes: int = 2**30) -> None:
        super().__init__(make_loop)
        self.done: Counter[str] = Counter()
        self._open: Callable[[], Driver] = lambda: Driver(
            make_loop(budget_bytes=budget_bytes, cache_dir=folder, drafting=wild_drafts())
        )
        self._warm = self._open()

    def restart(self) -> None:
        self.close()
        self._warm = self._open()
        self.done["restarts"] += 1

    def fork(self, source: int, target: int) -> None:
        """A session goes on under another key as well."""
        old, new = (SlotKey.for_session(None, f"session-{i}") for i in (source, target))
        if source != target:
            self._warm.loop.store.fork(old, new)
            self.done["slots forked"] += 1

    def travel(self, session: int) -> None:
        """A session's conversations leave in a file, are forgotten, and come back out of the file."""
        store = self._warm.loop.store
        slot = SlotKey.for_session(None, f"session-{session}")
        departure = store.depart(slot)
        if departure is None:
            return
        file = io.BytesIO(b"".join(iter(lambda: departure.read() or b"", b"")))
        store.departed(departure)
        store.delete(slot)
        with suppress(BudgetError):
            store.arrive(unpack(file, store.metadata, store.codec.layout), slot)
        self.done["sessions out of a file"] += 1

    def close(self) -> None:
        store = self._warm.loop.store
        store.disk.close()
        counters = store.counters
        loop = self._warm.loop.counters
        self.done["guesses that came true"] += loop.n_accepted
        self.done["guesses taken back"] += loop.n_drafted - loop.n_accepted
        self.done["prompts that reused something"] += counters.n_hits
        self.done["states copied"] += counters.n_forks
        self.done["conversations evicted"] += counters.n_evicted_entries
        self.done["conversations cut"] += counters.n_cut_entries
        self.done["checkpoints evicted"] += counters.n_evicted_checkpoints


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
    make_loop: MakeLoop,
    folder: Path,
    script: Sequence[Step],
    chance: random.Random,
    budget_bytes: int = 2**30,
) -> Counter[str]:
    walk = RestartedWalk(make_loop, folder, budget_bytes=budget_bytes)
    for step in script:
        if chance.random() < 0.15:
            walk.restart()
        if chance.random() < 0.05:
            walk.fork(chance.randrange(N_SESSIONS), chance.randrange(N_SESSIONS))
        if chance.random() < 0.05:
            walk.travel(chance.randrange(N_SESSIONS))
        walk.take(step)
        walk.done[step.act] += 1
    walk.close()
    return walk.done


def test_a_day_with_restarts_replies_as_fresh_processes_do(make_loop: MakeLoop, tmp_path: Path) -> None:
    walk_with_restarts(make_loop, tmp_path, SCENARIO, random.Random(3))


@pytest.mark.slow
def test_random_operations_with_restarts_and_evictions_reply_as_fresh_processes_do(
    make_loop: MakeLoop, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    n, done = pytestconfig.getoption("operations"), Counter[str]()
    for number, start in enumerate(range(0, n, N_TOGETHER)):
        chance = random.Random(number)
        script = random_steps(chance, min(N_TOGETHER, n - start))
        budget_bytes = BUDGETS[number % len(BUDGETS)]
        done += walk_with_restarts(make_loop, tmp_path / str(number), script, chance, budget_bytes)
    print(f"{n} operations: {dict(sorted(done.items()))}")
    # A walk in which nothing of this happens would prove nothing.
    for name in (
        "restarts",
        "sessions out of a file",
        "prompts that reused something",
        "states copied",
        "conversations evicted",
        "guesses that came true",
        "guesses taken back",
        "conversations cut",
    ):
        assert done[name] > 0, name


def test_a_state_that_comes_back_from_the_disk_without_its_past_is_noticed(
    make_loop: MakeLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the rows come back, the recurrent states are those of an empty state."""
    read = StateCodec.state

    def without_memory(self: StateCodec, checkpoint: Checkpoint, rows: Sequence[object]) -> State:
        state = read(self, checkpoint, rows)  # type: ignore[arg-type]
        state.recurrent = [Recurrent(a.window * 0, a.matrix * 0) for a in state.recurrent]
        return state

    monkeypatch.setattr(StateCodec, "state", without_memory)
    with pytest.raises(AssertionError, match=r"ReplayFromCheckpoint|ExactAppend"):
        walk_with_restarts(make_loop, tmp_path, SCENARIO, random.Random(3))


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


SEEDS_OF_CUTS = (4, 5)
"""Walks in which a cut conversation goes on from a state before its cut."""


def walk_with_little_memory(make_loop: MakeLoop, folder: Path) -> Counter[str]:
    """Conversations that are cut, and go on."""
    done = Counter[str]()
    for seed in SEEDS_OF_CUTS:
        script = random_steps(random.Random(seed), N_TOGETHER)
        done += walk_with_restarts(make_loop, folder / str(seed), script, random.Random(seed), 600_000)
    return done


@pytest.mark.slow
def test_conversations_that_were_cut_go_on_as_in_fresh_processes(make_loop: MakeLoop, tmp_path: Path) -> None:
    assert walk_with_little_memory(make_loop, tmp_path)["conversations cut"] > 0


@pytest.mark.slow
def test_a_cut_that_loses_what_lies_before_it_is_noticed(
    make_loop: MakeLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the recurrent states are given back along with the rows."""

    def shrink(state: State) -> None:
        state.recurrent = [Recurrent(a.window * 0, a.matrix * 0) for a in state.recurrent]

    monkeypatch.setattr(State, "shrink", shrink)
    with pytest.raises(AssertionError, match=r"ReplayFromCheckpoint|ExactAppend"):
        walk_with_little_memory(make_loop, tmp_path)


def test_a_cut_gives_memory_back(make_loop: MakeLoop) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    driver.ask([5 + i % 40 for i in range(1500)])
    store = driver.loop.store
    (entry,) = store._shelf.entries()
    for length in reversed(entry.ring.lengths):
        n_before = store.n_bytes
        store._shelf._shrink(entry, length)
        store.check()
        assert store.n_bytes < n_before
