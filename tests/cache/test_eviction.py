"""What goes when bytes are needed: the least useful first, and nothing that is in use."""

from __future__ import annotations

import numpy as np
import pytest

from cache.boundaries import PromptShape
from cache.entry import RunningEntry
from cache.planner import SlotKey
from cache.store import Store
from tests.fakes.cache_kit import OTHER, SLOT, UNIT, FakeClock, make_store
from tests.fakes.fake_state import FakeState, Geometry

IDS_BYTES = 4
HEAVY = Geometry(row_bytes=10, snapshot_bytes=2000, row_step=1)
"""A recurrent state that weighs as much as 200 tokens' rows, as the demo model's does."""

ENTRY_1000 = UNIT.kv_bytes(1000) + UNIT.snapshot_bytes + IDS_BYTES * 1000


def start(store: Store, slot: SlotKey, first_id: int, n: int, captures: tuple[int, ...] = ()) -> RunningEntry:
    """A request of ``n`` ids that differ from all others, read but not yet saved."""
    ids = np.arange(first_id, first_id + n, dtype=np.uint32)
    running = store.take(store.plan(slot, ids, PromptShape(shared_points=(n,))))
    state = running.state
    assert isinstance(state, FakeState)
    rest = ids[len(running) :]
    checkpoints = state.feed(rest.tolist(), captures)
    running.ids.extend(rest)
    for checkpoint in checkpoints:
        running.capture(checkpoint)
    store.enforce()
    return running


def keep(store: Store, slot: SlotKey, first_id: int, n: int, captures: tuple[int, ...] = ()) -> None:
    store.save(start(store, slot, first_id, n, captures))
    store.check()


def slots_held(store: Store) -> set[SlotKey]:
    return {info.slot for info in store.slots()}


def session(i: int) -> SlotKey:
    return SlotKey.for_session(None, f"session {i}")


def test_of_equal_conversations_the_longest_idle_goes() -> None:
    clock = FakeClock()
    store = make_store(budget_bytes=3 * ENTRY_1000, clock=clock)
    for i in range(4):
        clock.now_s += 10
        keep(store, session(i), 10_000 * i, 1000)
    assert slots_held(store) == {session(1), session(2), session(3)}
    assert store.counters.n_evicted_entries == 1


def test_one_shot_requests_do_not_push_out_a_conversation() -> None:
    clock = FakeClock()
    store = make_store(budget_bytes=HEAVY.kv_bytes(5000), geometry=HEAVY, clock=clock)
    for turn in range(5):
        clock.now_s += 10
        keep(store, SLOT, 0, 1200 + 200 * turn)
    for i in range(20):
        clock.now_s += 2
        keep(store, session(i), 10_000 * (i + 1), 200)
    assert SLOT in slots_held(store)


def test_a_conversation_that_was_long_does_not_outlive_all_others() -> None:
    clock = FakeClock()
    store = make_store(budget_bytes=3 * ENTRY_1000, clock=clock)
    for turn in range(50):
        clock.now_s += 10
        keep(store, SLOT, 0, 400 + 10 * turn)
    for i in range(20):
        clock.now_s += 100
        keep(store, session(i), 10_000 * (i + 1), 1000)
    assert SLOT not in slots_held(store)


def test_checkpoints_go_before_conversations() -> None:
    clock = FakeClock()
    n_entry = HEAVY.kv_bytes(1000) + HEAVY.snapshot_bytes + IDS_BYTES * 1000
    store = make_store(budget_bytes=2 * n_entry + 8 * HEAVY.snapshot_bytes, geometry=HEAVY, clock=clock)
    keep(store, SLOT, 0, 1000, tuple(range(100, 1000, 200)))
    clock.now_s += 1
    keep(store, OTHER, 10_000, 1000, tuple(range(100, 1000, 200)))
    assert slots_held(store) == {SLOT, OTHER}
    assert store.counters.n_evicted_checkpoints == 2
    assert store.counters.n_evicted_entries == 0


def test_what_runs_is_never_evicted_and_what_rests_gives_way() -> None:
    store = make_store(budget_bytes=2 * ENTRY_1000)
    keep(store, SLOT, 0, 1000)
    first = start(store, OTHER, 10_000, 1000)
    second = start(store, OTHER, 20_000, 1000)
    assert SLOT not in slots_held(store)
    assert store.n_bytes == store.n_pinned_bytes == 2 * ENTRY_1000
    store.save(first)
    store.save(second)
    store.check()


def test_a_request_under_way_gives_up_checkpoints_before_another_conversation_goes() -> None:
    n_entry = HEAVY.kv_bytes(1000) + HEAVY.snapshot_bytes + IDS_BYTES * 1000
    store = make_store(budget_bytes=2 * n_entry + 3 * HEAVY.snapshot_bytes, geometry=HEAVY)
    keep(store, SLOT, 0, 1000)
    running = start(store, OTHER, 10_000, 1000, tuple(range(100, 1000, 100)))
    assert SLOT in slots_held(store)
    assert len(running.ring) == 3
    store.save(running)
    store.check()


def test_what_had_to_be_in_memory_to_run_rests_there_until_another_request_needs_the_room() -> None:
    store = make_store(budget_bytes=ENTRY_1000)
    keep(store, SLOT, 0, 5000)
    assert [info.n_tokens for info in store.slots()] == [5000]
    keep(store, SLOT, 0, 5100)
    assert store.counters.n_reused_tokens == 5000
    keep(store, OTHER, 10_000, 1000)
    assert slots_held(store) == {OTHER}
    assert store.n_bytes <= ENTRY_1000


def test_what_rests_over_the_budget_goes_when_the_system_needs_the_room() -> None:
    store = make_store(budget_bytes=ENTRY_1000)
    keep(store, SLOT, 0, 5000, (500,))
    store.make_room(1)
    store.enforce()
    assert [info.n_tokens for info in store.slots()] == [500]
    store.check()


def test_a_conversation_that_is_too_large_keeps_the_longest_beginning_that_fits() -> None:
    store = make_store(budget_bytes=2 * ENTRY_1000)
    keep(store, SLOT, 0, 5000, tuple(range(100, 5000, 100)))
    keep(store, OTHER, 10_000, 500)
    (cut,) = (info for info in store.slots() if info.slot == SLOT)
    assert 1200 <= cut.n_tokens <= 1500
    assert store.plan(SLOT, np.arange(5000, dtype=np.uint32)).plan.reusable_len == cut.n_tokens
    assert store.counters.n_evicted_entries == 0


def test_a_conversation_that_can_be_cut_is_not_dropped_whole() -> None:
    store = make_store(budget_bytes=4 * ENTRY_1000, geometry=HEAVY)
    keep(store, SLOT, 0, 3000, (300,))
    keep(store, OTHER, 10_000, 2000)
    assert sorted(info.n_tokens for info in store.slots()) == [300, 2000]


@pytest.mark.parametrize("n_other", range(0, 3000, 150))
def test_what_is_lost_grows_smoothly_with_the_room_that_others_take(n_other: int) -> None:
    store = make_store(budget_bytes=4 * ENTRY_1000)
    keep(store, SLOT, 0, 3500, tuple(range(50, 3500, 50)))
    if n_other:
        keep(store, OTHER, 10_000, n_other)
    n_kept = store.plan(SLOT, np.arange(3600, dtype=np.uint32)).plan.reusable_len
    n_ideal = min(3500, (4 * ENTRY_1000) // (UNIT.row_bytes + IDS_BYTES) - n_other)
    assert n_kept >= n_ideal - 850  # one gap between states that it may be cut at


def test_a_request_is_admitted_when_it_fits_beside_what_runs_or_when_nothing_runs() -> None:
    store = make_store(budget_bytes=2 * ENTRY_1000)
    keep(store, OTHER, 50_000, 1000)
    assert store.can_admit(10 * ENTRY_1000)
    running = start(store, SLOT, 0, 1000)
    assert store.can_admit(ENTRY_1000)
    assert not store.can_admit(ENTRY_1000 + 1)
    store.drop(running)
    assert store.can_admit(10 * ENTRY_1000)


def test_a_slot_keeps_no_more_entries_than_its_limit() -> None:
    clock = FakeClock()
    store = make_store(max_entries_per_slot=3, clock=clock)
    for i in range(5):
        clock.now_s += 10
        keep(store, SLOT, 10_000 * i, 1000)
    (info,) = store.slots()
    assert [e.idle_s for e in info.entries] == [20.0, 10.0, 0.0]


def test_of_two_branches_the_one_that_is_cheaper_to_rebuild_goes() -> None:
    clock = FakeClock()
    store = make_store(max_entries_per_slot=2, clock=clock)
    trunk = np.arange(1000, dtype=np.uint32)
    for i, n_tail in enumerate((100, 900)):
        ids = np.concatenate([trunk, np.arange(10_000 * (i + 1), 10_000 * (i + 1) + n_tail, dtype=np.uint32)])
        choice = store.plan(SLOT, ids, PromptShape(shared_points=(len(ids),)))
        running = store.take(choice)
        state = running.state
        assert isinstance(state, FakeState)
        rest = ids[len(running) :]
        checkpoints = state.feed(rest.tolist(), (1000,))
        running.ids.extend(rest)
        for checkpoint in checkpoints:
            running.capture(checkpoint)
        store.save(running)
    keep(store, SLOT, 50_000, 1000)
    (info,) = store.slots()
    assert sorted(e.n_tokens for e in info.entries) == [1000, 1900]


def test_a_branch_that_is_cut_back_to_the_trunk_is_not_held_twice() -> None:
    store = make_store()
    trunk = np.arange(1000, dtype=np.uint32)
    keep(store, SLOT, 0, 1400, (500, 1000))
    ids = np.concatenate([trunk, np.arange(20_000, 20_300, dtype=np.uint32)])
    running = store.take(store.plan(SLOT, ids, PromptShape(shared_points=(len(ids),))))
    state = running.state
    assert isinstance(state, FakeState)
    state.feed(ids[len(running) :].tolist())
    running.ids.extend(ids[len(running) :])
    store.save(running)
    (branch,) = (entry for entry in store._shelf.entries() if len(entry) == 1300)
    store._shelf._shrink(branch, 500)
    store.check()
    (info,) = store.slots()
    assert [entry.n_tokens for entry in info.entries] == [1400]
