"""Random walks of many requests through one store, several of them under way at a time.

After every step the whole store is checked: each state, checkpoints included, is the one a fresh run over
its ids gives, the bytes counted are the bytes held, the budget holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache import selection
from cache.boundaries import PromptShape
from cache.disk.manifest import name_files
from cache.disk.tier import DiskTier
from cache.entry import Conversation, Entry, RunningEntry
from cache.planner import (
    PrefixRestorePlan,
    ReplayFromCheckpoint,
    SlotKey,
    TokenIds,
    longest_common_token_prefix,
)
from cache.ring import CheckpointRing, RingLimits
from cache.selection import Candidate, Choice
from cache.slots import Ledger
from cache.store import Store
from tests.fakes.cache_kit import UNIT, FakeClock, make_store
from tests.fakes.fake_state import FakeCheckpoint, FakeState, chain

TENANTS = (None, "me", "you")
KEYS = (None, "a", "b")
MESSAGE = 8
"""Ids of a message; the first of them opens it."""


@dataclass(eq=False)
class Job:
    """A request on its way; ``lent`` is its state while a batch would hold it."""

    choice: Choice
    running: RunningEntry
    lent: FakeState | None = None

    @property
    def state(self) -> FakeState:
        state = self.lent or self.running.state
        assert isinstance(state, FakeState)
        return state


@dataclass
class World:
    """A store, the requests under way, and what clients have sent before."""

    store: Store
    clock: FakeClock
    below: Callable[[int], int]
    jobs: list[Job] = field(default_factory=list)
    histories: list[tuple[int, ...]] = field(default_factory=lambda: [()])

    def any_job(self) -> Job | None:
        return self.jobs[self.below(len(self.jobs))] if self.jobs else None


def begin(world: World) -> None:
    """A prompt: some history cut at a message, and new messages after it."""
    history = world.histories[world.below(len(world.histories))]
    prompt = list(history[: MESSAGE * world.below(len(history) // MESSAGE + 1)])
    for _ in range(world.below(3) if prompt else 1 + world.below(2)):
        prompt += [9, *[1 + world.below(3)] * (MESSAGE - 1)]
    starts = tuple(range(0, len(prompt), MESSAGE))
    shape = PromptShape(
        message_starts=starts,
        shared_points=(len(prompt) - world.below(3),),
        last_user_start=starts[-1],
        system_end=MESSAGE if len(starts) > 1 else 0,
        questions=starts[1::2],
    )
    tenant, key = TENANTS[world.below(3)], KEYS[world.below(3)]
    slot = SlotKey.for_session(tenant, key)
    ids = np.array(prompt, dtype=np.uint32)
    world.store.recall(slot, ids)
    is_guess = world.below(5) == 0
    choice = world.store.plan(slot, ids, shape if world.below(4) else None, is_guess=is_guess)
    assert choice.plan.suffix_len >= 1
    if not choice.is_affordable:
        return
    if choice.source is not None and choice.plan.reusable_len > 0:
        assert choice.source.slot.tenant == tenant
        allowed = len(ids) if choice.origin == "kindred" else shape.system_end
        assert choice.source.slot == slot or choice.plan.reusable_len <= allowed
    running = world.store.take(choice)
    assert np.array_equal(running.ids.view, ids[: choice.plan.reusable_len])
    world.histories.append(tuple(prompt))
    world.jobs.append(Job(choice, running))


def feed(world: World) -> None:
    """Part of a prompt or, once it is read, two tokens of a reply."""
    job = world.any_job()
    if job is None:
        return
    n_read = len(job.running)
    rest = job.choice.prompt_ids[n_read:]
    ids: TokenIds = rest[: 1 + world.below(20)] if len(rest) else np.array([7, 7], dtype=np.uint32)
    checkpoints = job.state.feed(ids.tolist(), [p for p in job.choice.captures if p > n_read])
    job.running.ids.extend(ids)
    for checkpoint in checkpoints:
        job.running.capture(checkpoint)
    world.store.enforce()


def lend(world: World) -> None:
    """The state goes to a batch, which may or may not fork it for others; or comes back."""
    job = world.any_job()
    if job is None:
        return
    if job.lent is not None:
        job.running.give_back(job.lent)
        job.lent = None
    else:
        state = job.state
        job.running.lend(state if world.below(2) else None)
        job.lent = state
    world.store.enforce()


def rewind(world: World) -> None:
    """A stop string: the reply is cut at a state that is still held."""
    job = world.any_job()
    if job is not None and job.lent is None and len(job.running.ring):
        checkpoints = job.running.ring.checkpoints
        job.running.rewind(checkpoints[world.below(len(checkpoints))])


def branch(world: World) -> None:
    job = world.any_job()
    if job is not None and job.lent is None and len(job.running) and len(world.jobs) < 6:
        world.jobs.append(Job(job.choice, world.store.branch(job.running)))


def end(world: World) -> None:
    """The request ends, wherever it stands: its work is kept."""
    job = world.any_job()
    if job is not None:
        if job.lent is not None:
            job.running.give_back(job.lent)
        world.histories.append(tuple(job.running.ids.view.tolist()))
        world.store.save(job.running)
        world.jobs.remove(job)


def fail(world: World) -> None:
    job = world.any_job()
    if job is not None:
        world.store.drop(job.running)
        world.jobs.remove(job)


def delete(world: World) -> None:
    tenant, key = TENANTS[world.below(3)], KEYS[world.below(3)]
    world.store.delete(SlotKey.for_session(tenant, key))


def fork_slot(world: World) -> None:
    tenant = TENANTS[world.below(3)]
    source, target = (SlotKey.for_session(tenant, key) for key in (KEYS[world.below(3)], "copy"))
    world.store.fork(source, target)


def write_behind(world: World) -> None:
    """The engine is idle for a moment: where there is a cache folder, some files are written."""
    for _ in range(world.below(6)):
        world.store.disk.step()


def make_room(world: World) -> None:
    """The system needs some of what rests, or wants the budget to be another one for a while."""
    if world.below(2):
        world.store.make_room(1 + world.below(2000))
    else:
        n_bytes = world.store.budget_bytes
        world.store.budget_bytes = n_bytes // (1 + world.below(3))
        world.store.enforce()
        check(world.store)
        world.store.budget_bytes = n_bytes


def wait(world: World) -> None:
    world.clock.now_s += 10.0 * world.below(10)


# Named several times: what a server does most.
STEPS = (
    begin,
    begin,
    begin,
    feed,
    feed,
    feed,
    feed,
    end,
    end,
    lend,
    rewind,
    branch,
    fail,
    delete,
    fork_slot,
    wait,
    write_behind,
    write_behind,
    make_room,
)


def walk(below: Callable[[int], int], budget_bytes: int, n_steps: int, disk: DiskTier | None = None) -> World:
    """``below(n)`` makes all choices: a number from 0 to n - 1."""
    clock = FakeClock()
    limits = RingLimits(max_bytes=(None, 250, 600)[below(3)])
    store = make_store(
        budget_bytes=budget_bytes,
        ring_limits=limits,
        share_histories=below(2) == 1,
        clock=clock,
        max_entries_per_slot=4,
        disk=disk,
    )
    world = World(store, clock, below)
    for _ in range(n_steps):
        STEPS[below(len(STEPS))](world)
        check(store)
    while world.jobs:
        end(world)
        check(store)
    return world


def walks() -> list[World]:
    """Several walks, with little memory and more."""
    return [
        walk(random.Random(seed).randrange, budget_bytes, n_steps=1000)
        for seed in range(2)
        for budget_bytes in (1500, 4000)
    ]


def check(store: Store) -> None:
    store.check()
    for slot in store._shelf.slots:
        for entry, other in permutations(slot, 2):
            shared = longest_common_token_prefix(entry.ids.view, other.ids.view)
            assert entry.shared_with[other.number] == shared < len(entry), "a slot knows its entries wrongly"
    for conversation in store._conversations():
        n, ids = len(conversation), conversation.ids.view.tolist()
        ends = (*range(1, n, 5), n) if n else ()
        view, known = conversation.ids.view, conversation.digests
        files = [name_files("seed", view, ends, digests) for digests in (known, None)]
        assert files[0] == files[1], "a conversation's digests are not those of its ids"
        for checkpoint in conversation.ring.checkpoints:
            assert isinstance(checkpoint, FakeCheckpoint)
            assert checkpoint.value == chain(ids[: checkpoint.length]), "a checkpoint is not of a fresh run"


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([0, 500, 1500, 4000, 10**9]), st.integers(1, 40))
def test_no_walk_breaks_an_invariant(data: st.DataObject, budget_bytes: int, n_steps: int) -> None:
    world = walk(lambda n: data.draw(st.integers(0, n - 1)), budget_bytes, n_steps)
    assert world.store.n_bytes <= world.store.limit_bytes


@pytest.mark.parametrize("budget_bytes", [0, 500, 1500, 4000, 10**9])
def test_no_long_walk_breaks_an_invariant(budget_bytes: int) -> None:
    world = walk(random.Random(budget_bytes).randrange, budget_bytes, n_steps=2000)
    assert world.store.n_bytes <= world.store.limit_bytes
    for tenant in TENANTS:
        for info in world.store.slots(tenant):
            world.store.delete(info.slot)
    assert world.store.n_bytes == 0


def test_a_restore_that_forgets_the_recurrent_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(state: FakeState, checkpoint: FakeCheckpoint) -> None:
        state.truncate(checkpoint.length)
        state.value, state.position = 0, checkpoint.length

    monkeypatch.setattr(FakeState, "restore", restore)
    with pytest.raises(AssertionError, match="fresh run"):
        walk(random.Random(0).randrange, 10**9, n_steps=500)


def test_in_a_long_walk_conversations_are_cut_dropped_copied_and_guessed() -> None:
    """Otherwise the walks would prove nothing of these paths."""
    counters = [world.store.counters for world in walks()]
    for name in ("n_cut_entries", "n_evicted_entries", "n_forks", "n_hits"):
        assert sum(getattr(c, name) for c in counters) > 10, name


def test_a_cut_that_keeps_the_recurrent_state_of_the_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shrink(entry: Entry, length: int) -> None:
        state = entry.state
        assert isinstance(state, FakeState)
        state.truncate(length)
        state.position = length
        entry.forget_after(length)
        entry.ring.remove(length)

    monkeypatch.setattr(Entry, "shrink", shrink)
    with pytest.raises(AssertionError, match="fresh run"):
        walks()


def test_bytes_that_a_cut_frees_and_nobody_counts_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "add", lambda *_: None)
    with pytest.raises((AssertionError, KeyError)):
        walk(random.Random(0).randrange, 1500, n_steps=500)


def test_a_kindred_conversation_that_is_believed_past_its_first_difference_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def candidates(conversations: Iterable[Conversation], *_: object) -> Iterator[Candidate]:
        for c in conversations:
            for n in c.ring.lengths[-1:]:
                plan = PrefixRestorePlan(ReplayFromCheckpoint(n), n, n, n, 1, len(c))
                yield Candidate(c, plan, "kindred")  # type: ignore[arg-type]

    monkeypatch.setattr(selection, "kindred_candidates", candidates)
    with pytest.raises(AssertionError):
        walks()


def test_a_fork_that_shares_rows_with_its_source_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork(state: FakeState, checkpoint: FakeCheckpoint) -> FakeState:
        twin = FakeState(UNIT)
        twin.rows = state.rows
        twin.value, twin.position = checkpoint.value, checkpoint.length
        return twin

    monkeypatch.setattr(FakeState, "fork", fork)
    with pytest.raises(AssertionError):
        walk(random.Random(0).randrange, 10**9, n_steps=500)


def test_a_copied_slot_whose_earlier_states_are_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Entry.copy

    def miscopy(entry: Entry, number: int, slot: SlotKey, now: float) -> Entry:
        twin = copy(entry, number, slot, now)
        right = [c for c in twin.ring.checkpoints if isinstance(c, FakeCheckpoint)]
        wrong = [FakeCheckpoint(c.length, c.value + 1, c.n_bytes) for c in right]
        twin.ring = CheckpointRing(twin.ring.limits, wrong)
        return twin

    monkeypatch.setattr(Entry, "copy", miscopy)
    with pytest.raises(AssertionError):
        walks()
