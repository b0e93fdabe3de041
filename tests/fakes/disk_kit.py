"""Stores over a cache folder, and requests through them; run as a script, a process to be killed."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np

from cache.boundaries import PromptShape
from cache.disk.files import claim
from cache.disk.tier import DiskTier
from cache.planner import CrossTurnPrefixMetadata, SlotKey, TokenIds
from cache.selection import Choice
from cache.store import Store
from tests.fakes.cache_kit import METADATA, UNIT, make_store
from tests.fakes.fake_codec import FakeCodec
from tests.fakes.fake_state import FakeState


def open_tier(
    folder: Path, *, max_bytes: int = 10**9, metadata: CrossTurnPrefixMetadata = METADATA
) -> DiskTier:
    return DiskTier(
        claim(folder),
        max_bytes=max_bytes,
        metadata=metadata,
        codec=FakeCodec(UNIT),
        clock=time.time,
    )


def open_store(folder: Path, *, max_bytes: int = 10**9, budget_bytes: int = 10**9) -> Store:
    return make_store(budget_bytes=budget_bytes, disk=open_tier(folder, max_bytes=max_bytes))


def ask(store: Store, slot: SlotKey, ids: TokenIds) -> Choice:
    """One request: recalled, planned, read, saved; its state is checked against a fresh run."""
    shape = PromptShape(message_starts=(0, 10), shared_points=(len(ids) - 2,), system_end=10)
    store.recall(slot, ids)
    choice = store.plan(slot, ids, shape)
    running = store.take(choice)
    state = running.state
    assert isinstance(state, FakeState)
    rest = ids[len(running) :]
    checkpoints = state.feed(rest.tolist(), choice.captures)
    running.ids.extend(rest)
    for checkpoint in checkpoints:
        running.capture(checkpoint)
    store.save(running)
    store.check()
    return choice


def settle(store: Store) -> None:
    """Let everything reach the disk."""
    assert isinstance(store.disk, DiskTier)
    store.disk.flush()


def words(n: int, seed: int = 0) -> TokenIds:
    return np.random.default_rng(seed).integers(10, 1000, n).astype(np.uint32)


def grow_until_killed(folder: Path, seed: int) -> None:
    """Conversations that grow and are cut, for ever."""
    chance = random.Random(seed)
    store = open_store(folder, max_bytes=60_000)
    slots = [SlotKey.for_session(None, key) for key in "abc"]
    lengths = dict.fromkeys(slots, 100)
    for slot in slots:
        ask(store, slot, words(100, seed=slots.index(slot)))
    settle(store)
    print("ready", flush=True)
    while True:
        slot = chance.choice(slots)
        lengths[slot] = chance.choice([lengths[slot] + 300, max(50, lengths[slot] - 500)]) % 4000 + 20
        ask(store, slot, words(lengths[slot], seed=slots.index(slot)))
        for _ in range(chance.randrange(12)):
            store.disk.step()


if __name__ == "__main__":
    grow_until_killed(Path(sys.argv[1]), int(sys.argv[2]))
