"""What one tenant or session can do to another, and learn of it: nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cache.boundaries import PromptShape
from cache.planner import FullRefill, SlotKey, TokenIds
from cache.selection import Choice
from cache.store import Store
from tests.fakes.cache_kit import OTHER, SLOT, make_store
from tests.fakes.disk_kit import ask, open_store, settle, words
from tests.fakes.fake_state import FakeState

OWNER = SlotKey.for_session("owner", "chat")
STRANGER = SlotKey("stranger", OWNER.id)
"""Another tenant who names the owner's slot."""

THEIRS = SlotKey.for_session("stranger", "chat")


def remembering(folder: Path | None) -> Store:
    """A store, after a restart where there is a folder, with one conversation of the owner's."""
    if folder is None:
        store = make_store()
        ask(store, OWNER, words(500))
        return store
    store = open_store(folder)
    ask(store, OWNER, words(500))
    store.disk.close()
    return open_store(folder)


@pytest.mark.parametrize("on_disk", [False, True])
def test_x1_a_stranger_who_knows_a_slots_id_neither_copies_reads_nor_deletes_it(
    tmp_path: Path, on_disk: bool
) -> None:
    store = remembering(tmp_path if on_disk else None)
    assert store.fork(STRANGER, THEIRS) == 0
    assert store.delete(STRANGER) == 0
    assert store.slots("stranger") == ()
    for slot in (STRANGER, THEIRS):
        choice = ask(store, slot, words(520))
        assert (choice.source, choice.plan.mode) == (None, FullRefill())
        store.delete(slot)
    assert ask(store, OWNER, words(540)).plan.reusable_len == 500
    store.check()
    store.disk.close()


def test_x1_a_stranger_shares_no_file_with_the_owner_of_an_equal_slot_id(tmp_path: Path) -> None:
    store = remembering(tmp_path)
    before = {path.name for path in (tmp_path / "content").iterdir()}
    ask(store, STRANGER, words(500))
    settle(store)
    after = {path.name for path in (tmp_path / "content").iterdir()}
    assert len(after) == 2 * len(before)
    assert store.delete(STRANGER) == 1
    settle(store)
    assert {path.name for path in (tmp_path / "content").iterdir()} == before
    store.disk.close()


def test_x1_what_a_stranger_asks_for_is_looked_for_on_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading another's conversation back would tell by its time that it is there."""
    store = remembering(tmp_path)
    monkeypatch.setattr("cache.disk.blob.read", None)
    store.recall(STRANGER, words(520))
    assert store.fork(STRANGER, THEIRS) == store.delete(STRANGER) == 0
    store.disk.close()


@pytest.mark.parametrize("who", [STRANGER, OWNER])
def test_x1_a_slot_is_forked_and_deleted_during_its_first_request_as_if_it_were_not_there_yet(
    who: SlotKey,
) -> None:
    store = make_store()
    running = store.take(store.plan(OWNER, words(500)))
    state = running.state
    assert isinstance(state, FakeState)
    state.feed(words(500).tolist())
    running.ids.extend(words(500))
    assert store.fork(who, SlotKey.for_session(who.tenant, "copy")) == 0
    running.lend()
    assert store.delete(who) == (1 if who == OWNER else 0)
    running.give_back(state)
    store.save(running)
    store.check()
    assert len(store.slots("owner")) == (0 if who == OWNER else 1)


SYSTEM, SECRET = words(100, seed=7), words(60, seed=8)
SHAPE = PromptShape(message_starts=(0, 100), shared_points=(158,), last_user_start=100, system_end=100)


def told(prompt: TokenIds, shape: PromptShape = SHAPE, *, store: Store | None = None) -> Choice:
    """What a session learns that sends ``prompt``, beside another one that said SECRET."""
    store = store or make_store()
    owner = store.take(store.plan(SLOT, np.concatenate([SYSTEM, SECRET]), SHAPE))
    state = owner.state
    assert isinstance(state, FakeState)
    ids = np.concatenate([SYSTEM, SECRET])
    checkpoints = state.feed(ids.tolist(), (40, 100, 158))
    owner.ids.extend(ids)
    for checkpoint in checkpoints:
        owner.capture(checkpoint)
    store.save(owner)
    return store.plan(OTHER, prompt, shape)


def figures(choice: Choice) -> tuple[object, ...]:
    return (
        choice.plan,
        choice.origin,
        choice.diverged_at,
        choice.parted_at,
        choice.captures,
        choice.keep,
    )


def test_x2_a_right_guess_of_what_another_session_said_is_told_as_a_wrong_one_is() -> None:
    right, wrong = SECRET.copy(), SECRET.copy()
    wrong[0] += 1
    choices = [told(np.concatenate([SYSTEM, guess])) for guess in (right, wrong)]
    assert figures(choices[0]) == figures(choices[1])
    assert choices[0].plan.shared_token_prefix_len == 100


def test_x2_a_right_guess_within_another_system_block_is_told_as_a_wrong_one_is() -> None:
    """What is reused is told, at the checkpoints that are shared; the ids between them are not."""
    guesses = [SYSTEM.copy(), SYSTEM.copy()]
    guesses[0][80:] = guesses[1][79:] = 5
    choices = [told(np.concatenate([guess, SECRET])) for guess in guesses]
    assert figures(choices[0]) == figures(choices[1])
    assert choices[0].plan.shared_token_prefix_len == 40


def test_x2_a_system_block_that_spans_what_another_session_said_finds_its_own_length_only() -> None:
    whole = np.concatenate([SYSTEM, SECRET, words(50, seed=9)])
    shape = PromptShape(message_starts=(0, 160), shared_points=(208,), last_user_start=160, system_end=160)
    assert told(whole, shape).plan.reusable_len == 100


def test_x2_a_tenant_learns_nothing_of_another_tenants_system_block() -> None:
    store = make_store()
    ask(store, OWNER, words(500))
    choice = store.plan(THEIRS, words(500), PromptShape(system_end=100))
    assert (choice.source, choice.plan.shared_token_prefix_len) == (None, 0)


def test_e3_sessions_of_a_tenant_with_a_key_share_their_system_prompt() -> None:
    store = make_store()
    shape = PromptShape(message_starts=(0, 100), shared_points=(158,), last_user_start=100, system_end=100)
    for i in range(12):
        slot = SlotKey.for_session("owner", f"session {i}")
        prompt = np.concatenate([SYSTEM, words(60, seed=20 + i)])
        choice = store.plan(slot, prompt, shape)
        assert choice.plan.reusable_len == (100 if i else 0)
        running = store.take(choice)
        state = running.state
        assert isinstance(state, FakeState)
        rest = prompt[len(running) :]
        checkpoints = state.feed(rest.tolist(), choice.captures)
        running.ids.extend(rest)
        for checkpoint in checkpoints:
            running.capture(checkpoint)
        store.save(running)
    store.check()


def test_m7_a_checkpoint_that_two_conversations_of_a_slot_share_is_counted_once() -> None:
    store = make_store()
    trunk = words(300)
    for seed in (1, 2):
        ask(store, SLOT, np.concatenate([trunk[:290], words(200, seed=seed)]))
    (info,) = store.slots()
    assert len(info.entries) == 2
    assert set(info.entries[0].checkpoints) & set(info.entries[1].checkpoints)
    assert info.n_bytes == store.n_bytes
