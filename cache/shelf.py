"""Holds the entries at rest, slot by slot, and their bytes; lets go of what is missed least."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cache.counters import Counters
from cache.disk import DiskTier
from cache.entry import Entry
from cache.eviction import ChooseVictim, Victim, least_useful_entry
from cache.ledger import Ledger
from cache.nodisk import NoDisk
from cache.planner import CrossTurnSlotId
from cache.slots import Slot


class Shelf:
    """All slots that have something at rest.

    Args:
        counters: where evictions are counted.
        max_entries_per_slot: entries that one slot may keep.
        clock: seconds, monotonic.
        choose_victim: decides what goes when bytes are needed.
        disk: where everything at rest is also written.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        max_entries_per_slot: int,
        clock: Callable[[], float],
        choose_victim: ChooseVictim,
        disk: DiskTier | NoDisk,
    ) -> None:
        self.ledger = Ledger()
        self._counters = counters
        self._max_entries_per_slot = max_entries_per_slot
        self._clock = clock
        self._choose_victim = choose_victim
        self._disk = disk
        self._slots: dict[CrossTurnSlotId, Slot] = {}

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that have something at rest."""
        return tuple(self._slots.values())

    def entries(self) -> Iterator[Entry]:
        """Everything at rest, slot by slot."""
        for slot in self._slots.values():
            yield from slot

    def entries_of(self, slot_id: CrossTurnSlotId, tenant: str | None) -> tuple[Entry, ...]:
        """What the slot has at rest, oldest first."""
        slot = self._slots.get(slot_id)
        if slot is None:
            return ()
        assert slot.tenant == tenant, "a slot belongs to one tenant"
        return tuple(slot)

    def publish(self, entry: Entry) -> None:
        """Put ``entry`` to rest in its slot, beside the others or in place of those it contains."""
        entry.check()
        slot = self._slots.setdefault(entry.slot, Slot(entry.slot, entry.tenant))
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
        self._disk.withdraw(entry)
        slot = self._slots[entry.slot]
        slot.remove(entry)
        self.ledger.remove(entry)
        if len(slot) == 0:
            del self._slots[entry.slot]

    def evict_one(self, below: float) -> bool:
        """Let one checkpoint or entry go, if one is worth less than ``below``; False when none is."""
        victim = self._choose_victim(self._slots.values(), self.ledger, self._clock())
        if victim is None or victim.worth >= below:
            return False
        self._evict(victim)
        return True

    def check(self) -> None:
        """Assert that every entry is sound and stands in its own slot."""
        for slot in self._slots.values():
            assert 0 < len(slot) <= self._max_entries_per_slot
            for entry in slot:
                entry.check()
                assert (entry.slot, entry.tenant) == (slot.id, slot.tenant)

    def _absorb(self, longer: Entry, shorter: Entry) -> None:
        """Let ``shorter``, a prefix of ``longer``, go; what one can go back to in it stays."""
        kept = [*shorter.ring.checkpoints]
        if len(shorter) < len(longer):
            kept.append(shorter.state.snapshot())
        self.remove(shorter)
        self._disk.forget(shorter.lineage)
        self._disk.withdraw(longer)
        self.ledger.remove(longer)
        for checkpoint in kept:
            longer.ring.add(checkpoint)
        longer.ring.thin(end=len(longer), live_bytes=longer.state.n_bytes, keep=longer.keep)
        longer.n_hits = max(longer.n_hits, shorter.n_hits)
        self._slots[longer.slot].assessments = None
        self.ledger.add(longer)
        self._disk.want(longer)

    def _evict(self, victim: Victim) -> None:
        if victim.checkpoint is None:
            self._disk.finish(victim.entry)
            self.remove(victim.entry)
            self._counters.n_evicted_entries += 1
        else:
            self._slots[victim.entry.slot].assessments = None
            self.ledger.release(victim.entry.ring.remove(victim.checkpoint))
            self._counters.n_evicted_checkpoints += 1
