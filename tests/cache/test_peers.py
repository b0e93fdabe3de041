"""Several servers over one cache folder: each writes its own part and reads what the others wrote."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from cache.disk.files import claim
from cache.planner import ExactAppend, SlotKey
from cache.store import Store
from tests.fakes.cache_kit import OTHER, SLOT
from tests.fakes.disk_kit import ask, open_store, settle, words


def pair(folder: Path) -> tuple[Store, Store]:
    return open_store(folder), open_store(folder)


def close(*stores: Store) -> None:
    for store in stores:
        store.disk.close()


def test_each_server_writes_into_a_folder_of_its_own_and_takes_it_up_again(tmp_path: Path) -> None:
    one, other = claim(tmp_path), claim(tmp_path)
    assert (one.folder, other.folder) == (tmp_path, tmp_path / "peer-1")
    one.close()
    again = claim(tmp_path)
    assert again.folder == tmp_path
    again.close()
    other.close()


def test_a_session_that_moves_goes_on_where_it_was(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    ask(one, SLOT, words(2000))
    settle(one)
    choice = ask(other, SLOT, words(2100))
    assert choice.plan.mode == ExactAppend()
    assert choice.plan.reusable_len == 2000
    settle(other)
    assert ask(one, SLOT, words(2300)).plan.reusable_len == 2100  # and back, as it went on there
    close(one, other)


def test_another_session_finds_nothing_of_it(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    ask(one, SLOT, words(2000))
    settle(one)
    assert ask(other, OTHER, words(2100)).plan.reusable_len == 0
    tenants = SlotKey("tenant", SLOT.id)
    assert ask(other, tenants, words(2100)).plan.reusable_len == 0
    close(one, other)


def test_what_a_session_deleted_comes_back_from_no_server(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    ask(one, SLOT, words(2000))
    settle(one)
    assert other.delete(SLOT) > 0
    assert ask(other, SLOT, words(2100)).plan.reusable_len == 0
    other.disk.close()
    one.disk.close()
    restarted = open_store(tmp_path)
    assert ask(restarted, SLOT, words(1500)).plan.reusable_len == 0
    restarted.disk.close()


def test_a_session_that_was_deleted_can_begin_anew(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    ask(one, SLOT, words(2000))
    settle(one)
    other.delete(SLOT)
    ask(other, SLOT, words(2000, seed=7))
    settle(other)
    assert ask(one, SLOT, words(2100, seed=7)).plan.reusable_len == 2000
    close(one, other)


@pytest.mark.parametrize("what", ["content", "conversations", "cut", "folder"])
def test_what_another_server_takes_away_or_damages_is_passed_over(tmp_path: Path, what: str) -> None:
    one, other = pair(tmp_path)
    ask(one, SLOT, words(2000))
    settle(one)
    assert ask(other, OTHER, words(20, seed=9)).plan.reusable_len == 0  # it has looked around
    if what == "folder":
        (tmp_path / "conversations" / "0123456789abcdef0123456789abcdef").mkdir()
    elif what == "cut":
        for path in (tmp_path / "content").iterdir():
            path.write_bytes(path.read_bytes()[:-3])
    else:
        shutil.rmtree(tmp_path / what)
    choice = ask(other, SLOT, words(2100))
    assert choice.plan.reusable_len == (2000 if what == "folder" else 0)
    settle(other)
    close(other)


def test_random_sessions_that_wander_between_two_servers_reply_as_fresh_ones_do(tmp_path: Path) -> None:
    """``ask`` compares every state with a fresh run."""
    chance = random.Random(5)
    stores = list(pair(tmp_path))
    slots = [SlotKey.for_session(None, key) for key in "abc"]
    n_reused = 0
    for _ in range(120):
        i, slot = chance.randrange(2), chance.choice(slots)
        match chance.randrange(8):
            case 0:
                stores[i].disk.close()
                stores[i] = open_store(tmp_path)
            case 1:
                stores[i].delete(slot)
            case _:
                ids = words(chance.randrange(30, 1500), seed=slots.index(slot))
                if chance.random() < 0.3:
                    ids[chance.randrange(len(ids)) :] += np.uint32(1)
                n_reused += ask(stores[i], slot, ids).plan.reusable_len
                if chance.random() < 0.7:
                    settle(stores[i])
    assert n_reused > 5000
    close(*stores)
