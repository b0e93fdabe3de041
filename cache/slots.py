"""Slots: the private memories, each with the few conversations it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cache.entry import Entry, RunningEntry
from cache.planner import CrossTurnSlotId, longest_common_token_prefix


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a possible victim is worth, but for its age: a checkpoint of ``entry``, or all of it.

    Attributes:
        checkpoint: its length; None for the whole entry.
        work_per_byte: tokens to feed again if it were gone, over the bytes that frees.
    """

    entry: Entry
    checkpoint: int | None
    work_per_byte: float


class Slot:
    """One session's entries at rest, in order of saving.

    A slot belongs to one tenant for good: its id is derived from the tenant.

    Attributes:
        assessments: of all its entries, until something in it changes: ages pass, they stay.
    """

    def __init__(self, slot_id: CrossTurnSlotId, tenant: str | None) -> None:
        self.id = slot_id
        self.tenant = tenant
        self.assessments: tuple[Assessment, ...] | None = None
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def add(self, entry: Entry) -> None:
        """Take ``entry`` in and learn what it shares with the others."""
        assert entry.slot == self.id
        assert entry.tenant == self.tenant
        self.assessments = None
        entry.shared_with = {}
        for other in self._entries.values():
            shared = longest_common_token_prefix(entry.ids.view, other.ids.view)
            entry.shared_with[other.number] = other.shared_with[entry.number] = shared
        self._entries[entry.number] = entry

    def remove(self, entry: Entry) -> None:
        """Let ``entry`` go."""
        self.assessments = None
        del self._entries[entry.number]
        for other in self._entries.values():
            del other.shared_with[entry.number]

    def rebuild_work(self, entry: Entry) -> int:
        """Tokens to feed again if ``entry`` were gone: what no other entry of the slot begins with.
        (That the other has a state just there is taken for granted: forks part where one is.)"""
        return len(entry) - max(entry.shared_with.values(), default=0)


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One entry, for people: lengths in tokens, ages in seconds."""

    number: int
    n_tokens: int
    n_bytes: int
    checkpoints: tuple[int, ...]
    age_s: float
    idle_s: float
    n_hits: int
    running: bool


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One slot, for people."""

    slot: CrossTurnSlotId
    tenant: str | None
    entries: tuple[EntryInfo, ...]

    @property
    def n_tokens(self) -> int:
        """Tokens over all entries."""
        return sum(e.n_tokens for e in self.entries)

    @property
    def n_bytes(self) -> int:
        """Bytes over all entries."""
        return sum(e.n_bytes for e in self.entries)


def describe(conversations: Iterable[Entry | RunningEntry], now: float) -> tuple[SlotInfo, ...]:
    """Group ``conversations`` by slot, for people; ``now`` in seconds of the store's clock."""
    by_slot: dict[CrossTurnSlotId, list[EntryInfo]] = {}
    tenants: dict[CrossTurnSlotId, str | None] = {}
    for c in conversations:
        info = EntryInfo(
            number=c.number,
            n_tokens=len(c),
            n_bytes=c.n_own_bytes + c.ring.n_bytes,
            checkpoints=c.ring.lengths,
            age_s=now - c.created_at,
            idle_s=0.0 if isinstance(c, RunningEntry) else now - c.used_at,
            n_hits=c.n_hits,
            running=isinstance(c, RunningEntry),
        )
        by_slot.setdefault(c.slot, []).append(info)
        tenants[c.slot] = c.tenant
    return tuple(SlotInfo(slot, tenants[slot], tuple(infos)) for slot, infos in by_slot.items())
