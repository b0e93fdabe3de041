"""Slots: the private memories, each with the few conversations it keeps, and the bytes they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cache.entry import Conversation, Entry, Parent, RunningEntry
from cache.planner import SlotKey, longest_common_token_prefix
from cache.state import Checkpoint


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a possible victim is worth, but for its age: a checkpoint of ``entry``, or all of it.

    Attributes:
        checkpoint: its length; None for the whole entry, or its end.
        cut_at: length of the checkpoint that the entry goes back to; 0 where all of it goes.
        work_per_byte: tokens to feed again if it were gone, over the bytes that frees.
    """

    entry: Entry
    checkpoint: int | None
    work_per_byte: float
    cut_at: int = 0


class Slot:
    """One session's entries at rest, in order of saving.

    Attributes:
        key: whose they are.
        assessments: of all its entries, until something in it changes: ages pass, they stay.
    """

    def __init__(self, key: SlotKey) -> None:
        self.key = key
        self.assessments: tuple[Assessment, ...] | None = None
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def add(self, entry: Entry) -> None:
        """Take ``entry`` in and learn what it shares with the others."""
        assert entry.slot == self.key
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

    def shrink(self, entry: Entry, length: int) -> None:
        """Let go of what ``entry`` has behind its checkpoint at ``length``."""
        self.assessments = None
        entry.shrink(length)
        for other in self._entries.values():
            if other is not entry:
                shared = min(length, entry.shared_with[other.number])
                entry.shared_with[other.number] = other.shared_with[entry.number] = shared

    def rebuild_work(self, entry: Entry) -> int:
        """Tokens to feed again if ``entry`` were gone: what no other entry of the slot begins with.
        (That the other has a state just there is taken for granted: forks part where one is.)"""
        return len(entry) - max(entry.shared_with.values(), default=0)


class Ledger:
    """Counts the bytes of the entries at rest, exactly, and of each checkpoint once.

    Forks within a slot share the checkpoints before the point they part at, so bytes are counted by
    object: the last holder's departure frees them.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self._holders: dict[int, int] = {}

    def add(self, entry: Entry) -> None:
        """Count ``entry`` with its ring."""
        self.n_bytes += entry.n_own_bytes
        for checkpoint in entry.ring.checkpoints:
            self.hold(checkpoint)

    def remove(self, entry: Entry) -> None:
        """Stop counting ``entry`` with its ring."""
        self.n_bytes -= entry.n_own_bytes
        for checkpoint in entry.ring.checkpoints:
            self.release(checkpoint)

    def hold(self, checkpoint: Checkpoint) -> None:
        """Count one more holder of ``checkpoint``."""
        holders = self._holders.get(id(checkpoint), 0)
        self._holders[id(checkpoint)] = holders + 1
        if holders == 0:
            self.n_bytes += checkpoint.n_bytes

    def release(self, checkpoint: Checkpoint) -> None:
        """Count one holder of ``checkpoint`` less."""
        holders = self._holders.pop(id(checkpoint)) - 1
        if holders > 0:
            self._holders[id(checkpoint)] = holders
        else:
            self.n_bytes -= checkpoint.n_bytes

    def freed_by(self, checkpoint: Checkpoint, *, is_counted: bool = True) -> int:
        """Bytes that one holder less of ``checkpoint`` would free.

        Args:
            is_counted: whether that holder is one of the entries counted here.
        """
        others = self._holders.get(id(checkpoint), 0) - is_counted
        return 0 if others > 0 else checkpoint.n_bytes

    def beyond(self, conversations: Iterable[Conversation]) -> int:
        """Bytes of the rings of ``conversations`` (not at rest) that are not counted here."""
        seen: dict[int, int] = {}
        for conversation in conversations:
            for checkpoint in conversation.ring.checkpoints:
                if id(checkpoint) not in self._holders:
                    seen[id(checkpoint)] = checkpoint.n_bytes
        return sum(seen.values())


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One entry, for people: lengths in tokens, ages in seconds.

    Attributes:
        parent: the conversation it branched off.
        n_bytes: bytes held; a checkpoint that several entries of the slot hold counts in the first one.
    """

    number: int
    n_tokens: int
    n_bytes: int
    checkpoints: tuple[int, ...]
    age_s: float
    idle_s: float
    n_hits: int
    running: bool
    parent: Parent | None


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One slot, for people."""

    slot: SlotKey
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
    by_slot: dict[SlotKey, list[EntryInfo]] = {}
    counted: set[int] = set()
    for c in conversations:
        fresh = [point for point in c.ring.checkpoints if id(point) not in counted]
        counted.update(map(id, fresh))
        info = EntryInfo(
            number=c.number,
            n_tokens=len(c),
            n_bytes=c.n_own_bytes + sum(point.n_bytes for point in fresh),
            checkpoints=c.ring.lengths,
            age_s=now - c.created_at,
            idle_s=0.0 if isinstance(c, RunningEntry) else now - c.used_at,
            n_hits=c.n_hits,
            running=isinstance(c, RunningEntry),
            parent=c.parent,
        )
        by_slot.setdefault(c.slot, []).append(info)
    return tuple(SlotInfo(slot, tuple(infos)) for slot, infos in by_slot.items())
