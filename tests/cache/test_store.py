"""A request's way through the store: planned, taken, fed, saved; who may use what, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest

from cache.boundaries import PromptShape
from cache.disk.manifest import name_files
from cache.entry import RunningEntry
from cache.planner import ExactAppend, FullRefill, ReplayFromCheckpoint, SlotKey, TokenIds
from cache.ring import RingLimits
from cache.selection import Choice
from cache.store import Store
from tests.fakes.cache_kit import METADATA, OTHER, SLOT, UNIT, FakeClock, make_store
from tests.fakes.fake_state import FakeState


def words(first: int, n: int) -> TokenIds:
    return np.arange(first, first + n, dtype=np.uint32)


def chat(*parts: TokenIds) -> TokenIds:
    return np.concatenate(parts)


SYSTEM, HELLO, BYE = words(1000, 100), words(2000, 100), words(3000, 100)
CHAT = chat(SYSTEM, HELLO)
SHAPE = PromptShape(message_starts=(0, 100), shared_points=(198,), last_user_start=100, system_end=100)


def live(running: RunningEntry) -> FakeState:
    assert isinstance(running.state, FakeState)
    return running.state


def feed(running: RunningEntry, ids: TokenIds, captures: tuple[int, ...] = ()) -> None:
    start = len(running)
    taken = live(running).feed(ids.tolist(), [p for p in captures if start < p <= start + len(ids)])
    running.ids.extend(ids)
    for checkpoint in taken:
        running.capture(checkpoint)


def ask(
    store: Store,
    prompt: TokenIds = CHAT,
    reply: TokenIds = BYE,
    *,
    slot: SlotKey = SLOT,
    shape: PromptShape = SHAPE,
) -> Choice:
    """One whole request."""
    choice = store.plan(slot, prompt, shape)
    running = store.take(choice)
    feed(running, prompt[choice.plan.suffix_start :], choice.captures)
    feed(running, reply)
    store.save(running)
    store.check()
    return choice


def n_entries(store: Store, slot: SlotKey = SLOT) -> int:
    return sum(len(info.entries) for info in store.slots(slot.tenant) if info.slot == slot)


def test_the_first_request_of_a_slot_reads_everything() -> None:
    choice = ask(make_store())
    assert choice.plan.mode == FullRefill()
    assert choice.origin == "none"
    assert choice.source is None


def test_planning_changes_nothing() -> None:
    store = make_store()
    ask(store)
    before = store.slots(), store.n_bytes, store.counters.n_requests
    store.plan(SLOT, chat(CHAT, BYE, HELLO), SHAPE)
    assert (store.slots(), store.n_bytes, store.counters.n_requests) == before


def test_the_next_turn_continues_the_entry_without_a_copy() -> None:
    store = make_store()
    ask(store)
    choice = store.plan(SLOT, chat(CHAT, BYE, HELLO), SHAPE)
    running = store.take(choice)
    assert choice.plan.mode == ExactAppend()
    assert not choice.forks
    assert len(running) == 300
    assert n_entries(store) == 1
    assert store.counters.n_forks == 0
    assert choice.diverged_at is None


def test_a_reply_made_anew_goes_back_to_the_assistant_header_and_takes_the_state_over() -> None:
    store = make_store()
    ask(store)
    choice = ask(store, CHAT, words(9000, 50))
    assert choice.plan.mode == ReplayFromCheckpoint(198)
    assert not choice.forks
    assert n_entries(store) == 1
    assert choice.diverged_at is None


def test_another_chat_over_the_same_system_prompt_leaves_the_first_one_whole() -> None:
    store = make_store()
    ask(store)
    choice = ask(store, chat(SYSTEM, BYE))
    assert choice.plan.mode == ReplayFromCheckpoint(100)
    assert choice.forks
    assert n_entries(store) == 2
    assert ask(store, chat(CHAT, BYE, HELLO)).plan.mode == ExactAppend()


def test_a_tail_too_short_to_be_worth_a_copy_is_overwritten() -> None:
    store = make_store()
    ask(store, chat(SYSTEM, words(2000, 10)), words(3000, 10), shape=PromptShape(system_end=100))
    choice = ask(store, chat(SYSTEM, BYE))
    assert choice.plan.reusable_len == 100
    assert not choice.forks
    assert n_entries(store) == 1


def test_a_copy_is_not_made_where_the_budget_has_no_room_and_it_would_save_less_than_it_doubles() -> None:
    store = make_store(budget_bytes=chat_bytes(430))
    long_system = words(1000, 300)
    shape = PromptShape(message_starts=(0, 300), shared_points=(398,), last_user_start=300, system_end=300)
    ask(store, chat(long_system, words(2000, 60)), words(3000, 1), shape=shape)
    choice = store.plan(SLOT, chat(long_system, words(5000, 60)), shape)
    assert choice.plan.reusable_len == 300
    assert not choice.forks


def chat_bytes(n_tokens: int, n_checkpoints: int = 0) -> int:
    """Bytes of an entry: rows, recurrent states and ids."""
    return UNIT.kv_bytes(n_tokens) + UNIT.snapshot_bytes * (1 + n_checkpoints) + 4 * n_tokens


def test_a_clock_in_the_system_prompt_moves_the_state_and_costs_nothing_the_second_time() -> None:
    store = make_store()
    prompts = [chat(SYSTEM[:95], words(7000 + 10 * i, 5), HELLO) for i in range(3)]
    ask(store, prompts[0])
    second, third = ask(store, prompts[1]), ask(store, prompts[2])
    assert second.plan.mode == ReplayFromCheckpoint(36)
    assert 95 in second.captures
    assert third.plan.mode == ReplayFromCheckpoint(95)
    assert 95 in third.keep
    assert not third.forks


def test_the_entry_that_saves_most_is_chosen() -> None:
    store = make_store()
    ask(store, CHAT)
    ask(store, chat(SYSTEM, BYE))
    assert store.plan(SLOT, chat(CHAT, BYE, HELLO), SHAPE).plan.reusable_len == 300
    assert store.plan(SLOT, chat(SYSTEM, BYE, BYE, HELLO), SHAPE).plan.reusable_len == 300
    assert store.plan(SLOT, chat(SYSTEM, words(1, 50)), SHAPE).plan.reusable_len == 100


def test_a_cancelled_prefill_keeps_what_was_read() -> None:
    store = make_store()
    running = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(running, CHAT[:150])
    store.save(running)
    assert store.plan(SLOT, CHAT, SHAPE).plan.reusable_len == 150


def test_a_request_that_read_nothing_leaves_nothing() -> None:
    store = make_store()
    store.save(store.take(store.plan(SLOT, CHAT, SHAPE)))
    assert store.slots() == ()
    assert store.n_bytes == 0


def test_a_dropped_entry_is_gone_with_its_bytes() -> None:
    store = make_store()
    running = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(running, CHAT, (100,))
    assert store.n_bytes > 0
    store.drop(running)
    assert store.n_bytes == 0
    store.check()


def test_an_entry_whose_state_does_not_stand_after_its_ids_is_never_published() -> None:
    store = make_store()
    running = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(running, CHAT)
    running.ids.append(1)
    with pytest.raises(AssertionError, match="200, 201 ids were fed"):
        store.save(running)


def test_a_state_that_forgot_its_past_while_its_rows_stayed_is_never_published() -> None:
    store = make_store()
    running = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(running, CHAT)
    live(running).value = 0
    with pytest.raises(AssertionError, match="fresh run"):
        store.save(running)


def test_a_request_forks_from_one_that_still_reads_the_same_system_prompt() -> None:
    store = make_store()
    first = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(first, CHAT[:150], (100,))
    choice = store.plan(SLOT, chat(SYSTEM, BYE), SHAPE)
    second = store.take(choice)
    assert (choice.origin, choice.forks, len(second)) == ("running", True, 100)
    feed(second, BYE)
    feed(first, CHAT[150:])
    for running in (first, second):
        store.save(running)
    store.check()
    assert n_entries(store) == 2


def test_a_state_that_is_lent_is_forked_through_whoever_holds_it() -> None:
    store = make_store()
    first = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(first, CHAT, (100,))
    state = first.lend(live(first))
    assert first.is_lent
    assert store.plan(SLOT, chat(SYSTEM, BYE), SHAPE).plan.reusable_len == 100
    first.give_back(state)
    store.save(first)


def test_a_state_that_is_lent_without_an_answerer_is_left_alone() -> None:
    store = make_store()
    first = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(first, CHAT, (100,))
    n_before = store.n_bytes
    first.lend()
    assert store.n_bytes == n_before
    assert store.plan(SLOT, chat(SYSTEM, BYE), SHAPE).plan.mode == FullRefill()


def test_branches_of_a_prompt_go_their_own_ways() -> None:
    store = make_store()
    first = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(first, CHAT, (100,))
    second = store.branch(first)
    feed(first, HELLO)
    feed(second, BYE)
    store.check()
    store.save(first)
    store.save(second)
    store.check()
    assert n_entries(store) == 2


def test_going_back_while_running_forgets_what_was_fed_after_the_checkpoint() -> None:
    store = make_store()
    running = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(running, CHAT, (100, 150))
    running.rewind(running.ring.at(100))
    assert (len(running), running.ring.lengths) == (100, (100,))
    feed(running, BYE)
    store.save(running)
    store.check()


def test_an_entry_that_is_the_beginning_of_another_is_merged_into_it() -> None:
    store = make_store()
    first = store.take(store.plan(SLOT, CHAT, SHAPE))
    second = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(first, CHAT[:150], captures=(120,))
    feed(second, CHAT)
    store.save(first)
    store.save(second)
    store.check()
    assert n_entries(store) == 1
    (info,) = store.slots()
    assert {120, 150} <= set(info.entries[0].checkpoints)
    assert store.plan(SLOT, chat(CHAT[:150], BYE), SHAPE).plan.reusable_len == 150


def test_an_entry_that_adds_nothing_to_an_older_one_is_merged_into_it() -> None:
    store = make_store()
    first = store.take(store.plan(SLOT, CHAT, SHAPE))
    second = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(first, CHAT)
    feed(second, CHAT[:150])
    store.save(first)
    store.save(second)
    store.check()
    assert n_entries(store) == 1
    assert store.plan(SLOT, chat(CHAT, BYE), SHAPE).plan.reusable_len == 200


def test_entries_that_part_at_their_last_token_are_not_merged() -> None:
    store = make_store()
    first = store.take(store.plan(SLOT, CHAT, SHAPE))
    second = store.take(store.plan(SLOT, CHAT, SHAPE))
    feed(first, chat(CHAT[:150], BYE[:1]))
    feed(second, CHAT)
    store.save(first)
    store.save(second)
    store.check()
    assert n_entries(store) == 2
    for history in (chat(CHAT[:150], BYE[:1]), CHAT):
        running = store.take(store.plan(SLOT, chat(history, BYE), SHAPE))
        feed(running, chat(history, BYE)[len(running) :])
        store.save(running)
        store.check()


def test_slots_of_a_tenant_share_the_system_block_by_copy_and_nothing_more() -> None:
    store = make_store()
    ask(store)
    choice = ask(store, chat(CHAT, BYE, HELLO), slot=OTHER)
    assert (choice.origin, choice.plan.mode) == ("shared", ReplayFromCheckpoint(100))
    assert n_entries(store) == n_entries(store, OTHER) == 1


def test_nothing_is_shared_between_slots_when_the_switch_is_off() -> None:
    store = make_store(share_prefixes=False)
    ask(store)
    assert ask(store, slot=OTHER).plan.mode == FullRefill()


def test_a_prompt_without_a_system_block_shares_nothing_between_slots() -> None:
    store = make_store()
    ask(store)
    shape = PromptShape(message_starts=(0, 100), shared_points=(198,), last_user_start=100)
    assert ask(store, slot=OTHER, shape=shape).plan.mode == FullRefill()


def test_tenants_never_share() -> None:
    store = make_store()
    mine, yours = (SlotKey.for_session(tenant, "key") for tenant in ("me", "you"))
    ask(store, slot=mine)
    choice = ask(store, slot=yours)
    assert choice.plan.mode == FullRefill()
    assert choice.source is None
    assert [info.slot for info in store.slots("me")] == [mine]
    assert [info.slot for info in store.slots("you")] == [yours]
    assert store.slots(None) == ()


def test_metadata_that_differs_is_named() -> None:
    store = make_store()
    ask(store)
    store.metadata = METADATA.__class__(**{**_fields(METADATA), "kv_dtype": "q8"})  # type: ignore[arg-type]
    choice = store.plan(SLOT, chat(CHAT, BYE), SHAPE)
    assert choice.plan.mode == FullRefill()
    assert choice.plan.mismatch == "kv_dtype"


def _fields(metadata: object) -> dict[str, object]:
    return {name: getattr(metadata, name) for name in metadata.__dataclass_fields__}  # type: ignore[attr-defined]


def test_a_deleted_slot_is_gone_and_what_runs_in_it_is_not_kept() -> None:
    store = make_store()
    ask(store)
    running = store.take(store.plan(SLOT, chat(SYSTEM, BYE), SHAPE))
    feed(running, BYE)
    assert store.delete(SLOT) == 2
    store.save(running)
    store.check()
    assert store.slots() == ()
    assert store.n_bytes == 0


def test_a_forked_slot_is_warm_and_independent() -> None:
    store = make_store()
    ask(store)
    assert store.fork(SLOT, OTHER) == 1
    assert ask(store, chat(CHAT, BYE, HELLO), slot=OTHER).plan.mode == ExactAppend()
    assert ask(store, chat(CHAT, BYE, HELLO)).plan.mode == ExactAppend()


def test_a_forked_slot_goes_back_to_the_states_of_its_source_and_computes_what_a_fresh_one_does() -> None:
    store = make_store()
    ask(store)
    ask(store, chat(CHAT, BYE, HELLO))
    lengths = [entry.checkpoints for entry in store.slots()[0].entries]
    n_before = store.n_bytes
    store.fork(SLOT, OTHER)
    store.check()
    source, forked = store._shelf.entries_of(SLOT)[0], store._shelf.entries_of(OTHER)[0]
    assert [entry.ring.lengths for entry in (source, forked)] == 2 * lengths
    assert store.n_bytes == n_before + forked.n_own_bytes  # the states are held once
    # The source goes; what the fork shares with it stays, and is true.
    store.delete(SLOT)
    store.check()
    at = lengths[0][0]
    choice = store.plan(OTHER, np.append(forked.ids.view[: at + 1], np.uint32(7)))
    assert choice.plan.mode == ReplayFromCheckpoint(at)
    warm = store.take(choice)
    fresh = make_store()
    cold = fresh.take(fresh.plan(OTHER, choice.prompt_ids))
    feed(warm, choice.prompt_ids[at:])
    feed(cold, choice.prompt_ids)
    assert warm.state.snapshot() == cold.state.snapshot()


def test_digests_follow_a_conversation_that_is_cut_and_goes_on_otherwise() -> None:
    def names(known: bool) -> object:
        (entry,) = store._shelf.entries_of(SLOT)
        ends = range(1, len(entry) + 1)
        return name_files("seed", entry.ids.view, ends, entry.digests if known else None)

    store = make_store()
    ask(store)
    assert names(known=True) == names(known=False)
    assert ask(store, chat(CHAT, words(4000, 150))).plan.mode == ReplayFromCheckpoint(198)
    assert names(known=True) == names(known=False)


def test_what_a_fork_shares_can_be_evicted_from_both() -> None:
    store = make_store()
    ask(store)
    store.fork(SLOT, OTHER)
    for _ in range(100):
        store.make_room(1)
        store.check()
    assert store.n_bytes == 0


def test_x2_who_comes_back_for_an_evicted_state_learns_when_it_went_and_nobody_else_does() -> None:
    clock = FakeClock()
    store = make_store(clock=clock)
    ask(store)
    ask(store, slot=OTHER)
    clock.now_s = 10.0
    store.make_room(10**9)
    assert store.slots() == ()
    clock.now_s = 50.0
    whole = chat(CHAT, BYE)
    assert store.loss(store.plan(SLOT, chat(whole, HELLO))) == (300, 40.0)
    assert store.loss(store.plan(SLOT, chat(CHAT, HELLO))) == (198, 40.0)
    assert store.loss(store.plan(SLOT, words(7000, 300))) is None  # other ids, the same length
    stranger = SlotKey.for_session("another tenant", "a")
    assert store.loss(store.plan(stranger, chat(whole, HELLO))) is None
    assert store.loss(store.plan(SlotKey.for_session(None, "c"), chat(whole, HELLO))) is None
    store.delete(SLOT)
    assert store.loss(store.plan(SLOT, chat(whole, HELLO))) is None


def test_what_rested_above_the_budget_is_within_it_once_the_system_needed_room() -> None:
    store = make_store(budget_bytes=2500)
    ask(store)
    assert store.n_bytes > 2500
    store.make_room(1)
    store.check()
    assert store.n_bytes <= 2500


def test_what_is_still_held_elsewhere_is_not_mourned() -> None:
    store = make_store()
    ask(store)
    store.make_room(1)
    choice = store.plan(SLOT, chat(CHAT, BYE, HELLO))
    lost = store.loss(choice)
    assert lost is None or lost[0] > choice.plan.reusable_len


def test_after_a_fault_what_runs_or_is_unsound_is_forgotten_and_the_rest_stays() -> None:
    store = make_store()
    third = SlotKey.for_session(None, "third")
    for slot in (SLOT, OTHER, third):
        ask(store, slot=slot)
    store.take(store.plan(SLOT, CHAT, SHAPE)).lend()
    (damaged,) = store._shelf.entries_of(third)
    damaged.ids.truncate(len(damaged) - 1)
    store.forget_unsound()
    store.check()
    assert [info.slot for info in store.slots()] == [OTHER]


def test_only_the_running_entries_that_somebody_feeds_are_kept() -> None:
    store = make_store()
    fed, left_over = (store.take(store.plan(slot, CHAT, SHAPE)) for slot in (SLOT, OTHER))
    store.drop_all_but([fed])
    assert tuple(store._running.values()) == (fed,)
    store.drop(left_over)  # forgotten already: nothing happens
    assert store.counters.n_drops == 1


def test_room_is_made_among_what_is_at_rest_as_far_as_there_is_any() -> None:
    store = make_store()
    for slot in (SLOT, OTHER):
        ask(store, slot=slot)
    n_bytes = store.n_bytes
    store.make_room(n_bytes // 2)
    assert 0 < store.n_bytes <= n_bytes - n_bytes // 2
    store.make_room(n_bytes)
    store.check()
    assert store.n_bytes == 0


def test_slots_are_described_in_tokens_bytes_and_seconds() -> None:
    clock = FakeClock()
    store = make_store(clock=clock)
    ask(store)
    clock.now_s = 5.0
    (info,) = store.slots()
    (entry,) = info.entries
    assert (entry.n_tokens, info.n_tokens, entry.idle_s, entry.age_s) == (300, 300, 5.0, 5.0)
    assert (entry.n_hits, entry.running) == (0, False)
    assert {100, 198} <= set(entry.checkpoints)
    assert info.n_bytes == store.n_bytes


def test_a_limit_bounds_what_the_ring_of_an_entry_holds() -> None:
    store = make_store(ring_limits=RingLimits(max_bytes=3 * UNIT.snapshot_bytes))
    ask(store)
    (info,) = store.slots()
    assert len(info.entries[0].checkpoints) == 3
