"""What chats, agents, clocks, sub-agents and compactions read again at the sizes that people run, counted
over states that weigh what real ones weigh."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from clairvoyant import Wanted, least_fed
from counted_state import GEOMETRIES, QWEN_27B, QWEN_35B_A3B, CountedState
from replay import METADATA, POLICIES, Outcome, TraceClock, play, replay, wanted, worth_of
from scenarios import SCENARIOS, SYSTEM, USER, Ask, Script, agent_regenerates, compaction, sub_agents

from cache.entry import Standing
from cache.planner import SlotKey
from cache.ring import RingLimits
from cache.store import Store

GIB = 2**30
CLOCK = "clock, system prompt of 2,500"
SESSIONS_WORTH = (0.25, 0.5, 1, 2, 4, 8)


@cache
def asks_of(scenario: str) -> tuple[Ask, ...]:
    return tuple(SCENARIOS[scenario]())


@cache
def outcome(scenario: str, geometry: str, budget_bytes: int) -> Outcome:
    weights = GEOMETRIES[geometry]
    return replay(asks_of(scenario), POLICIES["crossturn"], budget_bytes=budget_bytes, weights=weights)


def store_of(budget_bytes: int, clock: TraceClock | None = None) -> Store:
    return Store(
        METADATA,
        budget_bytes=budget_bytes,
        ring_limits=RingLimits(),
        share_prefixes=True,
        clock=clock or TraceClock(),
        new_state=lambda: CountedState(QWEN_35B_A3B),
    )


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_ten_gibibytes_two_percent_is_read_twice_at_most(scenario: str, geometry: str) -> None:
    assert outcome(scenario, geometry, 10 * GIB).reread_ratio <= 1.02


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(("n_sessions", "limit"), [(2, 1.65), (4, 1.3), (8, 1.05)])
def test_with_room_for_some_sessions_little_is_read_twice(
    scenario: str, geometry: str, n_sessions: int, limit: float
) -> None:
    budget_bytes = n_sessions * worth_of(asks_of(scenario), GEOMETRIES[geometry])
    assert outcome(scenario, geometry, budget_bytes).reread_ratio <= limit


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name.startswith("agent")])
def test_half_of_an_agents_memory_is_no_cliff(scenario: str, geometry: str) -> None:
    budget_bytes = worth_of(asks_of(scenario), GEOMETRIES[geometry]) // 2
    assert outcome(scenario, geometry, budget_bytes).reread_ratio <= 1.5


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(("scenario", "limit"), [("chat of 12 turns, three edits", 2.2), (CLOCK, 1.4)])
def test_where_a_conversation_just_fits_it_keeps_states_to_go_back_to(
    scenario: str, limit: float, geometry: str
) -> None:
    """Heavy states took the place of all but the last one: 2.5 and, for the clock at 35B, 1.71."""
    budget_bytes = worth_of(asks_of(scenario), GEOMETRIES[geometry])
    assert outcome(scenario, geometry, budget_bytes).reread_ratio <= limit


def test_an_agent_larger_than_the_budget_does_not_read_everything_at_every_step() -> None:
    """27B, 3 GiB, a conversation of 100,000 tokens: 16.5 times what is new when it was dropped whole."""
    assert outcome("agent, edits of two questions", "27B", 3 * GIB).reread_ratio <= 1.2


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_budget_feeds_less_than_a_clairvoyant_could(scenario: str) -> None:
    weights = GEOMETRIES["4B"]
    for n in SESSIONS_WORTH:
        budget_bytes = int(n * worth_of(asks_of(scenario), weights))
        least = least_fed(wanted(asks_of(scenario), 1), budget_bytes // weights.row_bytes)
        assert outcome(scenario, "4B", budget_bytes).n_fed >= least


def test_a_clairvoyant_lets_go_first_of_what_is_wanted_last() -> None:
    def ask(session: str, n: int) -> Wanted:
        ids = np.arange(n, dtype=np.uint32)
        return Wanted(session, ids, ids[:0])

    requests = [ask("a", 10), ask("b", 10), ask("a", 12), ask("b", 12)]
    assert least_fed(requests, capacity=100) == 10 + 10 + 2 + 2
    assert least_fed(requests, capacity=15) == 10 + 10 + 2 + 7
    # What the last request had may rest: ten units are held, and those are of the one who asks next.
    assert least_fed(requests, capacity=0) == 10 + 10 + 2 + 12


# -- reading ahead ---------------------------------------------------------------------------------


def test_what_is_read_ahead_leaves_what_a_regenerate_needs() -> None:
    *before, ahead, again = agent_regenerates()
    assert ahead.is_ahead
    store = store_of(10 * GIB)
    for ask in (*before, ahead):
        play(store, ask)
    assert play(store, again) == 1


def test_where_memory_has_no_room_for_a_guess_nothing_is_read_ahead() -> None:
    *before, ahead, again = agent_regenerates()
    store = store_of(int(1.5 * worth_of(before, QWEN_35B_A3B)))
    for ask in before:
        play(store, ask)
    assert play(store, ahead) is None
    assert play(store, again) is not None
    store.check()


def test_a_guess_is_dropped_before_anything_that_was_asked_for() -> None:
    *before, ahead, _ = agent_regenerates()
    clock = TraceClock()
    store = store_of(10 * GIB, clock)
    for ask in (*before, ahead):
        clock.now_s = ask.t_s
        play(store, ask)
    (slot,) = store.slots()
    lengths = [entry.n_tokens for entry in slot.entries]
    assert len(lengths) == 2
    while len(store.slots()[0].entries) == 2:
        store.make_room(1)
    (left,) = store.slots()[0].entries
    assert left.parent is None
    assert left.n_tokens == lengths[0]


def test_a_guess_that_came_true_takes_the_place_of_what_it_was_read_ahead_of() -> None:
    *before, ahead, _ = agent_regenerates()
    store = store_of(10 * GIB)
    for ask in (*before, ahead):
        play(store, ask)
    ids = np.concatenate([ahead.ids, np.arange(900_000, 900_100, dtype=np.uint32)])
    follow_up = Ask("a", 0.0, ids, before[-1].shape, ids[:5], 100)
    assert play(store, follow_up) == 100
    standings = [entry.standing for entry in store._shelf.entries()]
    assert standings == [Standing.OVER, Standing.GOING_ON]


# -- lineage and compaction ------------------------------------------------------------------------


def test_sub_agents_fork_the_conversation_they_start_from_and_it_goes_on() -> None:
    store = store_of(10 * GIB)
    asks = sub_agents()
    n_fed = [play(store, ask) for ask in asks]
    assert all(fed is not None and fed <= ask.n_new + 16 for fed, ask in zip(n_fed, asks, strict=True))
    (slot,) = store.slots()
    parents = [entry.parent for entry in slot.entries if entry.parent is not None]
    assert len(parents) >= 4
    assert {parent.slot for parent in parents} == {SlotKey.for_session(None, "a")}
    assert len({parent.number for parent in parents}) < len(parents)  # several of one parent
    store.check()


def test_a_conversation_that_was_compacted_goes_first_once_its_summary_has_answered_twice() -> None:
    store = store_of(10 * GIB)
    over: list[int] = []
    for ask in compaction():
        play(store, ask)
        over.append(sum(entry.standing is Standing.OVER for entry in store._shelf.entries()))
    assert over[11] == 0
    assert over[-1] >= 2
    n_entries = len(tuple(store._shelf.entries()))
    store.make_room(1)
    for _ in range(10_000):
        if len(tuple(store._shelf.entries())) < n_entries:
            break
        store.make_room(1)
    assert sum(entry.standing is Standing.OVER for entry in store._shelf.entries()) < over[-1]


def test_another_chat_over_the_same_system_prompt_takes_nobodys_place() -> None:
    store, script = store_of(10 * GIB), Script()
    system = script.say(SYSTEM, 500)
    for _ in range(3):
        messages = [system]
        for _ in range(4):
            messages.append(script.say(USER, 100))
            messages.append(script.ask(messages, 100))
    for ask in script.asks:
        play(store, ask)
    assert [entry.standing for entry in store._shelf.entries()] == 3 * [Standing.GOING_ON]


@pytest.mark.parametrize("budget_gib", [1, 3, 10])
def test_the_books_are_right_whatever_is_played(budget_gib: int) -> None:
    for scenario in SCENARIOS:
        store = Store(
            METADATA,
            budget_bytes=budget_gib * GIB,
            ring_limits=RingLimits(),
            share_prefixes=True,
            clock=TraceClock(),
            new_state=lambda: CountedState(QWEN_27B),
        )
        for ask in asks_of(scenario):
            play(store, ask)
            store.check()
