"""The debug check over everything the store holds."""

from __future__ import annotations

from collections.abc import Collection

from cache.entry import Entry, RunningEntry


def check(
    conversations: Collection[Entry | RunningEntry], *, n_counted_bytes: int, budget_bytes: int
) -> None:
    """Assert that nothing is shared that must not be, and that every byte is counted.

    Args:
        conversations: all that rest or run.
        n_counted_bytes: what the store believes they hold.
        budget_bytes: what they may hold while anything rests.
    """
    states = [id(c.state) for c in conversations if not c.is_lent]
    assert len(states) == len(set(states)), "two entries share a state"
    slots_of: dict[int, set[int]] = {}
    for c in conversations:
        for checkpoint in c.ring.checkpoints:
            slots_of.setdefault(id(checkpoint), set()).add(c.slot.value)
    assert all(len(slots) == 1 for slots in slots_of.values()), "two slots share a checkpoint"
    rings = {id(p): p.n_bytes for c in conversations for p in c.ring.checkpoints}
    n_held_bytes = sum(c.n_own_bytes for c in conversations) + sum(rings.values())
    assert n_held_bytes == n_counted_bytes, f"{n_counted_bytes} bytes counted, {n_held_bytes} held"
    assert n_held_bytes <= budget_bytes or all(isinstance(c, RunningEntry) for c in conversations), (
        "over the budget although something rests"
    )
