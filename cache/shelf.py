"""Holds the entries at rest, slot by slot, and their bytes; lets go of what is missed least."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from cache.boundaries import MERGE_TOKENS
from cache.disk.manifest import Found, Recalled
from cache.disk.tier import DiskTier
from cache.entry import Entry, RunningEntry, Standing
from cache.eviction import ChooseVictim, Victim, least_useful_entry
from cache.planner import SlotKey, TokenIds
from cache.slots import Habits, Ledger, Losses, Slot
from cache.travel import Departure

QUOTED_MESSAGES, QUOTE_TOKENS = 6, 12
"""A conversation that holds one of the last messages of another, of so many tokens, was made from it."""


@dataclass(slots=True)
class Counters:
    """What happened in the cache since it was made, in events and tokens; all of them only grow."""

    n_requests: int = 0
    n_hits: int = 0
    n_forks: int = 0
    n_saves: int = 0
    n_drops: int = 0
    n_evicted_entries: int = 0
    n_cut_entries: int = 0
    n_evicted_checkpoints: int = 0
    n_prompt_tokens: int = 0
    n_reused_tokens: int = 0

    def count_request(self, n_prompt: int, n_reused: int) -> None:
        """A prompt of ``n_prompt`` tokens of which ``n_reused`` need not be fed."""
        self.n_requests += 1
        self.n_hits += n_reused > 0
        self.n_prompt_tokens += n_prompt
        self.n_reused_tokens += n_reused


class NoDisk:
    """Answers as a :class:`DiskTier` over an empty folder that stays empty."""

    is_behind = False
    n_bytes = 0
    n_conversations = 0

    def want(self, entry: Entry) -> None:
        """Nothing is written."""

    def withdraw(self, entry: Entry) -> None:
        """Nothing was being written."""

    def finish(self, entry: Entry) -> None:
        """Nothing is written."""

    def step(self) -> bool:
        """Nothing is left to write."""
        return False

    def forget(self, lineage: str) -> None:
        """Nothing is there."""

    def forget_slot(self, _slot: SlotKey) -> int:
        """Nothing is there."""
        return 0

    def best(self, _slot: SlotKey, _prompt_ids: TokenIds) -> Found | None:
        """Nothing is there."""
        return None

    def all_of(self, _slot: SlotKey) -> tuple[Found, ...]:
        """Nothing is there."""
        return ()

    def n_bytes_of(self, _found: Found) -> int:
        """Nothing is ever found."""
        raise AssertionError("nothing was found here")

    def read(self, _found: Found) -> Recalled | None:
        """Nothing is ever found."""
        raise AssertionError("nothing was found here")

    def close(self) -> None:
        """Nothing is held."""


class Shelf:
    """All slots that have something at rest.

    Args:
        counters: where evictions are counted.
        max_entries_per_slot: entries that one slot may keep.
        clock: seconds, monotonic.
        choose_victim: decides what goes when bytes are needed.
        disk: where everything at rest is also written.
        habits: tell how likely what is asked for.

    Attributes:
        losses: states that went for want of memory.
        departures: files that entries at rest are being read into.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        max_entries_per_slot: int,
        clock: Callable[[], float],
        choose_victim: ChooseVictim,
        disk: DiskTier | NoDisk,
        habits: Habits,
    ) -> None:
        self.ledger = Ledger()
        self.losses = Losses()
        self._counters = counters
        self._max_entries_per_slot = max_entries_per_slot
        self._clock = clock
        self._choose_victim = choose_victim
        self._disk = disk
        self._habits = habits
        self._slots: dict[SlotKey, Slot] = {}
        self.departures: list[Departure] = []

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that have something at rest."""
        return tuple(self._slots.values())

    def entries(self) -> Iterator[Entry]:
        """Everything at rest, slot by slot."""
        for slot in self._slots.values():
            yield from slot

    def entries_of(self, key: SlotKey) -> tuple[Entry, ...]:
        """What the slot has at rest, oldest first."""
        return tuple(self._slots.get(key, ()))

    def publish(self, entry: Entry) -> None:
        """Put ``entry`` to rest in its slot, beside the others or in place of those it contains."""
        entry.check()
        slot = self._slots.setdefault(entry.slot, Slot(entry.slot))
        slot.add(entry)
        self.ledger.add(entry)
        for other in slot:
            if other is entry:
                continue
            shared = entry.shared_with[other.number]
            if shared == len(other):
                self._absorb(entry, other)
            elif shared == len(entry):
                other.used_at = entry.used_at
                self._absorb(other, entry)
                return
        self._disk.want(entry)
        while len(slot) > self._max_entries_per_slot:
            self._evict(least_useful_entry(slot, self.ledger, self._clock()))

    def remove(self, entry: Entry) -> None:
        """Let ``entry`` go. What the disk has of it stays."""
        self._withdraw(entry)
        slot = self._slots[entry.slot]
        slot.remove(entry)
        self.ledger.remove(entry)
        if len(slot) == 0:
            del self._slots[entry.slot]

    def evict_one(self, below: float) -> bool:
        """Let one checkpoint, or an entry or its end go, if one is worth less than ``below``; False when
        none is."""
        victim = self._choose_victim(self._slots.values(), self.ledger, self._habits, self._clock())
        if victim is None or victim.worth >= below:
            return False
        self._evict(victim)
        return True

    def evict_others(self, kept: Entry, budget_bytes: int) -> None:
        """Let go of what is at rest beside ``kept`` until ``budget_bytes`` hold all, or it is alone."""
        while self.ledger.n_bytes > budget_bytes:
            others = [entry for entry in self.entries() if entry is not kept]
            if not others:
                return
            self._evict(Victim(min(others, key=lambda entry: entry.used_at), None, 0.0))

    def take_over(self, heir: Entry) -> None:
        """``heir`` has answered often enough: a conversation of its slot that parted from it at the system
        block, whose last messages it quotes, and that nobody has used since is its own past in full."""
        for entry in self._slots[heir.slot]:
            shared = heir.shared_with.get(entry.number, 0)
            parts_early = 0 < shared <= heir.system_end + MERGE_TOKENS  # messages begin alike
            if parts_early and entry.used_at <= heir.created_at and _quotes(heir, entry):
                entry.standing = Standing.OVER

    def supersede(self, guess: Entry) -> None:
        """``guess`` came true: the conversation goes on in it, not in the one that it was read ahead of."""
        for entry in self.entries_of(guess.slot):
            if guess.parent is not None and entry.lineage == guess.parent.lineage:
                entry.standing = Standing.OVER

    def n_bytes_used_since(self, since: float, snapshot_bytes: int) -> int:
        """Bytes of what was used since then and may go on, with a state or two each to go back to; further
        states are there because there was room."""
        return sum(
            entry.n_own_bytes + min(len(entry.ring), 2) * snapshot_bytes
            for entry in self.entries()
            if entry.standing is Standing.GOING_ON and entry.used_at >= since
        )

    def remove_unsound(self) -> None:
        """Let go of what fails its own check."""
        for entry in tuple(self.entries()):
            try:
                entry.check()
            except Exception:
                self.remove(entry)

    def check(self) -> None:
        """Assert that every entry is sound and stands in its own slot."""
        for slot in self._slots.values():
            assert 0 < len(slot) <= self._max_entries_per_slot
            for entry in slot:
                entry.check()
                assert entry.slot == slot.key

    def _absorb(self, longer: Entry, shorter: Entry) -> None:
        """Let ``shorter``, a prefix of ``longer``, go; what one can go back to in it stays."""
        kept = [*shorter.ring.checkpoints]
        if len(shorter) < len(longer):
            kept.append(shorter.state.snapshot())
        self.remove(shorter)
        self._disk.forget(shorter.lineage)
        self._withdraw(longer)
        self.ledger.remove(longer)
        for checkpoint in kept:
            longer.ring.add(checkpoint)
        longer.ring.thin(end=len(longer), keep=longer.keep)
        longer.n_hits = max(longer.n_hits, shorter.n_hits)
        self._slots[longer.slot].assessments = None
        self.ledger.add(longer)
        self._disk.want(longer)

    def _withdraw(self, entry: Entry) -> None:
        """``entry`` is about to change: nobody may read it from here on."""
        self._disk.withdraw(entry)
        for departure in self.departures:
            departure.hurry(entry)

    def _evict(self, victim: Victim) -> None:
        entry = victim.entry
        if victim.checkpoint is not None:
            lengths = [victim.checkpoint]
        else:
            lengths = [length for length in (*entry.ring.lengths, len(entry)) if length > victim.cut_at]
        self.losses.note(entry, lengths, self._clock())
        if victim.checkpoint is not None:
            self._slots[entry.slot].assessments = None
            self.ledger.release(entry.ring.remove(victim.checkpoint), entry.slot)
            self._counters.n_evicted_checkpoints += 1
        elif victim.cut_at == 0:
            self._disk.finish(entry)
            self.remove(entry)
            self._counters.n_evicted_entries += 1
            self._habits.ran_short()
        else:
            self._disk.finish(entry)
            self._shrink(entry, victim.cut_at)
            self._counters.n_cut_entries += 1
            self._habits.ran_short()

    def _shrink(self, entry: Entry, length: int) -> None:
        """Keep of ``entry`` what lies before its checkpoint at ``length``. What the disk has stays whole."""
        self._withdraw(entry)
        slot = self._slots[entry.slot]
        self.ledger.remove(entry)
        slot.shrink(entry, length)
        self.ledger.add(entry)
        if any(shared == length for shared in entry.shared_with.values()):
            self.remove(entry)  # another one begins with all that is left of it


def _quotes(heir: Entry, other: Entry) -> bool:
    """Whether one of the last messages of ``other``, not a short one, stands in ``heir``."""
    n_short = 4 * QUOTE_TOKENS  # bytes of ids
    last = {message for message in _messages(other)[-QUOTED_MESSAGES:] if len(message) >= n_short}
    return not last.isdisjoint(_messages(heir))


def _messages(entry: Entry) -> tuple[bytes, ...]:
    """The ids of each message behind the system block that is complete, without what follows."""
    starts = [p for p in entry.shape.message_starts if entry.system_end <= p < len(entry)]
    ids = entry.ids.view
    return tuple(ids[a:b].tobytes() for a, b in pairwise(starts))


def check_all(
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
    tenants_of: dict[int, set[str | None]] = {}
    for c in conversations:
        for checkpoint in c.ring.checkpoints:
            tenants_of.setdefault(id(checkpoint), set()).add(c.slot.tenant)
    assert all(len(tenants) == 1 for tenants in tenants_of.values()), "two tenants share a checkpoint"
    rings = {id(p): p.n_bytes for c in conversations for p in c.ring.checkpoints}
    n_held_bytes = sum(c.n_own_bytes for c in conversations) + sum(rings.values())
    assert n_held_bytes == n_counted_bytes, f"{n_counted_bytes} bytes counted, {n_held_bytes} held"
    assert n_held_bytes <= budget_bytes or all(isinstance(c, RunningEntry) for c in conversations), (
        "over the budget although something rests"
    )
