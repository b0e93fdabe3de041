"""Conversations out of one store and into another: whole, or refused."""

from __future__ import annotations

import io
from collections.abc import Collection
from dataclasses import fields, replace

import numpy as np
import pytest

from cache import entry
from cache.planner import CrossTurnPrefixMetadata, ExactAppend, ReplayFromCheckpoint, SlotKey
from cache.store import BudgetError, Store
from cache.travel import DamagedParcelError, ForeignParcelError, Traveller, unpack
from tests.cache.test_store import CHAT, HELLO, SHAPE, SYSTEM, ask, chat, feed, live, words
from tests.fakes.cache_kit import METADATA, OTHER, SLOT, make_store

LONG = words(5000, 900)


def exported(store: Store, slot: SlotKey = SLOT, without: Collection[str] = ()) -> bytes:
    departure = store.depart(slot, without)
    assert departure is not None
    pieces = []
    while (piece := departure.read()) is not None:
        pieces.append(piece)
    store.departed(departure)
    return b"".join(pieces)


def opened(file: bytes, metadata: CrossTurnPrefixMetadata = METADATA) -> tuple[Traveller, ...]:
    return unpack(io.BytesIO(file), metadata, "integers")


def state_names(file: bytes) -> set[str]:
    return {state.name for traveller in opened(file) for state in traveller.manifest.states}


def told(store: Store | None = None) -> Store:
    """A store with a conversation of two turns."""
    store = store or make_store()
    ask(store)
    ask(store, chat(CHAT, words(3000, 100), LONG), words(7000, 50))
    return store


def test_an_imported_conversation_goes_on_as_an_exact_append() -> None:
    there = make_store()
    assert there.arrive(opened(exported(told())), OTHER) == 1
    there.check()
    more = chat(CHAT, words(3000, 100), LONG, words(7000, 50), HELLO)
    choice = ask(there, more, slot=OTHER)
    assert choice.plan.mode == ExactAppend()
    assert choice.plan.reusable_len == len(more) - len(HELLO)


def test_an_imported_conversation_can_be_edited_at_its_checkpoints() -> None:
    there = make_store()
    there.arrive(opened(exported(told())), OTHER)
    choice = ask(there, chat(CHAT, words(3000, 100), words(9000, 30)), slot=OTHER)
    assert isinstance(choice.plan.mode, ReplayFromCheckpoint)
    assert choice.plan.reusable_len >= len(CHAT)


def test_an_import_belongs_to_the_slot_it_was_taken_into_alone() -> None:
    there = make_store(share_prefixes=False)
    there.arrive(opened(exported(told())), SlotKey.for_session("tenant", "a"))
    assert there.slots(None) == ()
    assert there.plan(SlotKey.for_session("tenant", "b"), CHAT, SHAPE).plan.reusable_len == 0


def test_the_file_names_neither_tenant_nor_slot() -> None:
    mine = SlotKey.for_session("somebody", "a very private session")
    store = make_store()
    ask(store, slot=mine)
    other = make_store()
    ask(other)
    file = exported(store, mine)
    assert b"somebody" not in file
    assert str(mine).encode() not in file
    names = {state.name for traveller in opened(file) for state in traveller.manifest.states}
    assert names == {
        state.name for traveller in opened(exported(other)) for state in traveller.manifest.states
    }


def test_a_conversation_that_goes_on_while_it_is_read_travels_as_it_was() -> None:
    store = told()
    departure = store.depart(SLOT)
    assert departure is not None
    pieces = [departure.read()]
    ask(store, chat(SYSTEM, words(8000, 300)))
    ask(store, chat(CHAT, words(3000, 100), LONG, words(7000, 50), HELLO))
    ask(store, chat(CHAT, words(3000, 20)))
    while (piece := departure.read()) is not None:
        pieces.append(piece)
    store.departed(departure)
    there = make_store()
    there.arrive(opened(b"".join(piece for piece in pieces if piece is not None)), SLOT)
    there.check()
    running = there.take(there.plan(SLOT, chat(CHAT, words(3000, 100), LONG, words(7000, 51)), SHAPE))
    feed(running, words(7050, 1))
    live(running).check()


def test_a_slot_with_nothing_at_rest_has_nothing_to_export() -> None:
    assert make_store().depart(SLOT) is None


def test_every_cut_of_the_file_is_refused() -> None:
    store = make_store()
    ask(store)
    file = exported(store)
    for end in range(0, len(file) - 1024, 101):
        with pytest.raises(DamagedParcelError):
            opened(file[:end])


def test_every_changed_byte_of_content_is_refused() -> None:
    store = make_store()
    ask(store)
    file = exported(store)
    chance = np.random.default_rng(0)
    n_refused = 0
    for position in chance.integers(0, len(file), 300):
        changed = bytearray(file)
        changed[position] ^= 1 << int(chance.integers(8))
        try:
            found = opened(bytes(changed))
        except (DamagedParcelError, ForeignParcelError):
            n_refused += 1
        else:  # of padding, or of a field of the archive that nothing depends on
            assert [t.manifest.ids.tolist() for t in found] == [t.manifest.ids.tolist() for t in opened(file)]
            there = make_store()
            there.arrive(found, SLOT)
            there.check()
    assert n_refused > 100


@pytest.mark.parametrize("field", [field.name for field in fields(CrossTurnPrefixMetadata)])
def test_a_file_of_another_model_is_refused_by_the_field_that_differs(field: str) -> None:
    value = getattr(METADATA, field)
    other = f"{value}x" if isinstance(value, str) else ("x",) if isinstance(value, tuple) else 77
    if field == "adapter_id":
        other = type(value)(77)  # type: ignore[assignment]
    file = exported(told())
    with pytest.raises(ForeignParcelError) as refusal:
        opened(file, replace(METADATA, **{field: other}))
    assert refusal.value.field == field
    assert field in str(refusal.value)


def test_rows_of_another_conversation_are_refused() -> None:
    one, other = make_store(), make_store()
    ask(one, chat(SYSTEM, words(2000, 600)))
    ask(other, chat(SYSTEM, words(4000, 600)))
    mine, theirs = opened(exported(one))[0].manifest, opened(exported(other))[0].manifest
    assert not {rows.name for rows in mine.rows} & {rows.name for rows in theirs.rows}
    file = exported(one).replace(mine.rows[-1].name.encode(), theirs.rows[-1].name.encode())
    with pytest.raises(DamagedParcelError):
        opened(file)


def test_content_that_the_other_side_has_stays_out_of_the_file() -> None:
    store = make_store()
    ask(store, chat(SYSTEM, words(2000, 1500)))
    whole = exported(store)
    first = opened(whole)[0].manifest
    has = {rows.name for rows in first.rows[:2]}
    part = exported(store, without=has)
    assert len(part) < len(whole)
    with pytest.raises(DamagedParcelError, match="is missing"):
        opened(part)
    there = make_store()
    ask(there, chat(SYSTEM, words(2000, 1500)), words(1, 3), slot=OTHER)
    held = there.contents(OTHER.tenant)
    assert has <= set(held)
    found = unpack(
        io.BytesIO(part), METADATA, "integers", lambda names: {name: held[name]() for name in names}
    )
    there.arrive(found, SLOT)
    there.check()


def test_what_was_named_for_a_push_is_not_hashed_again_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store()
    ask(store, chat(SYSTEM, words(2000, 1500)))
    names = set(store.contents(SLOT.tenant))
    monkeypatch.setattr(entry, "blake2b", None)
    assert set(store.contents(SLOT.tenant)) == names


def test_what_is_larger_than_the_budget_is_refused_before_anything_is_taken() -> None:
    there = make_store(budget_bytes=2000)
    with pytest.raises(BudgetError):
        there.arrive(opened(exported(told())), SLOT)
    assert there.slots() == ()


def test_a_preloaded_block_is_there_for_every_tenant_and_nothing_behind_it() -> None:
    there = make_store(share_prefixes=False)
    there.arrive(opened(exported(told())), SlotKey.PRELOADED)
    for tenant in (None, "one", "two"):
        slot = SlotKey.for_session(tenant, "a")
        choice = there.plan(slot, chat(CHAT, words(3000, 100), LONG), SHAPE)
        assert choice.plan.reusable_len == len(SYSTEM)
        assert choice.plan.shared_token_prefix_len == len(SYSTEM)
        assert choice.forks
        assert choice.slot == slot
