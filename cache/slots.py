"""Slots: the private memories, each with the few conversations it keeps, the bytes they hold, and how prompts
use them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cache.boundaries import Place
from cache.entry import Conversation, Entry, Parent, PrefixDigests, RunningEntry
from cache.planner import SlotKey, TokenIds, longest_common_token_prefix
from cache.state import Checkpoint

_DOUBT = {Place.QUESTION: 3.0, Place.MESSAGE: 1.0, Place.SYSTEM: 1.0, Place.INSIDE: 1.0}
"""Returns taken for seen before the first one, by place: people edit what they said."""

_DOUBT_RATE, _DOUBT_REQUESTS = 0.05, 20.0
"""The share of requests that go back, and how many requests that belief weighs as much as."""

_SLOT_DOUBT_REQUESTS = 10.0
"""How many requests of a slot its own share needs to weigh as much as everybody's."""

_SHORTAGE, _NEARING = 0.1, 0.3
"""How likely a conversation will have to be cut, as long as nothing is known, and how much that nears
certainty each time one is."""

_SHORT = 0.7
"""How likely a conversation will have to be cut that fills all there is: the best over the scenarios of
``bench/replay.py`` at a quarter to one session's worth."""

_FADING = 0.9
"""How much of that likelihood a request leaves that went by without."""

MAX_SLOTS = 10_000
"""Slots whose habits are remembered; beyond, all begin anew."""


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

    Forks share the checkpoints before the point they part at, so bytes are counted by object: the last
    holder's departure frees them.

    Attributes:
        stale: slots in which letting go of a checkpoint frees more, or less, than when it was last asked.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self.stale: set[SlotKey] = set()
        self._holders: dict[int, list[SlotKey]] = {}

    def add(self, entry: Entry) -> None:
        """Count ``entry`` with its ring."""
        self.n_bytes += entry.n_own_bytes
        for checkpoint in entry.ring.checkpoints:
            self._hold(checkpoint, entry.slot)

    def remove(self, entry: Entry) -> None:
        """Stop counting ``entry`` with its ring."""
        self.n_bytes -= entry.n_own_bytes
        for checkpoint in entry.ring.checkpoints:
            self.release(checkpoint, entry.slot)

    def release(self, checkpoint: Checkpoint, slot: SlotKey) -> None:
        """Count a holder of ``checkpoint`` in ``slot`` less."""
        holders = self._holders[id(checkpoint)]
        holders.remove(slot)
        if not holders:
            del self._holders[id(checkpoint)]
            self.n_bytes -= checkpoint.n_bytes
        elif len(holders) == 1:
            self.stale.add(holders[0])

    def _hold(self, checkpoint: Checkpoint, slot: SlotKey) -> None:
        holders = self._holders.setdefault(id(checkpoint), [])
        if not holders:
            self.n_bytes += checkpoint.n_bytes
        elif len(holders) == 1:
            self.stale.add(holders[0])
        holders.append(slot)

    def freed_by(self, checkpoint: Checkpoint, *, is_counted: bool = True) -> int:
        """Bytes that one holder less of ``checkpoint`` would free.

        Args:
            is_counted: whether that holder is one of the entries counted here.
        """
        others = len(self._holders.get(id(checkpoint), ())) - is_counted
        return 0 if others > 0 else checkpoint.n_bytes

    def beyond(self, conversations: Iterable[Conversation]) -> int:
        """Bytes of the rings of ``conversations`` (not at rest) that are not counted here."""
        seen: dict[int, int] = {}
        for conversation in conversations:
            for checkpoint in conversation.ring.checkpoints:
                if id(checkpoint) not in self._holders:
                    seen[id(checkpoint)] = checkpoint.n_bytes
        return sum(seen.values())


MAX_LOSSES = 256
"""States lost of which a slot knows."""

_LOST = "lost"


class Habits:
    """Learns how often prompts go back, to which kind of place, and how often memory ran short. Rates are
    probabilities for one request; nothing is known in advance but a little doubt."""

    def __init__(self) -> None:
        self._n_requests = 0
        self._n_returns = 0
        self._n_next = 0
        self._by_place: Counter[Place] = Counter()
        self._of_slot: dict[SlotKey, list[int]] = {}
        self.shortage = _SHORTAGE

    def saw(self, slot: SlotKey, place: Place | None) -> None:
        """A prompt of ``slot`` left its conversation at ``place``; None where it went on from the end."""
        self._n_requests += 1
        self._n_next += place is Place.NEXT
        if len(self._of_slot) >= MAX_SLOTS:
            self._of_slot.clear()
        counts = self._of_slot.setdefault(slot, [0, 0])
        counts[0] += 1
        if place is not None and place is not Place.NEXT:
            self._n_returns += 1
            self._by_place[place] += 1
            counts[1] += 1
        self.shortage *= _FADING

    def ran_short(self) -> None:
        """A conversation had to be cut for want of memory."""
        self.shortage += (1 - self.shortage) * _NEARING

    def is_short(self) -> None:
        """What runs leaves no room for a state beside it: unless it goes on before anyone else comes, it will
        be cut."""
        self.shortage = max(self.shortage, _SHORT)

    @property
    def next_rate(self) -> float:
        """Share of prompts that leave their conversation where the next turn was expected to."""
        return (self._n_next + 5.0) / (self._n_requests + 10.0)

    def return_rate(self, slot: SlotKey, place: Place) -> float:
        """Share of prompts of ``slot`` that go back to some place of this kind."""
        everybody = (self._n_returns + _DOUBT_RATE * _DOUBT_REQUESTS) / (self._n_requests + _DOUBT_REQUESTS)
        n, n_back = self._of_slot.get(slot, (0, 0))
        rate = (n_back + everybody * _SLOT_DOUBT_REQUESTS) / (n + _SLOT_DOUBT_REQUESTS)
        share = (self._by_place[place] + _DOUBT[place]) / (self._n_returns + sum(_DOUBT.values()))
        return rate * share


@dataclass(frozen=True, slots=True)
class Loss:
    """A state that was let go for want of memory.

    Attributes:
        length: tokens that it stood for.
        digest: of those tokens.
        at_s: when, in seconds of the store's clock.
    """

    length: int
    digest: str
    at_s: float


class Losses:
    """Remembers what each slot lost of late, so that whoever comes back for it can be told. Holds digests, no
    ids, and answers for no other slot than the one that asks."""

    def __init__(self) -> None:
        self._of_slot: dict[SlotKey, deque[Loss]] = {}

    def note(self, conversation: Conversation, lengths: Iterable[int], now_s: float) -> None:
        """The states of ``conversation`` at ``lengths``, ascending, go."""
        if len(self._of_slot) >= MAX_SLOTS:
            self._of_slot.clear()
        lost = self._of_slot.setdefault(conversation.slot, deque(maxlen=MAX_LOSSES))
        digests = conversation.digests.at(_LOST, conversation.ids.view, lengths)
        lost.extend(Loss(length, digest, now_s) for length, digest in digests.items())

    def best(self, slot: SlotKey, prompt_ids: TokenIds, reused_len: int) -> Loss | None:
        """What ``slot`` lost that would save ``prompt_ids`` [n] most beyond the first ``reused_len``."""
        useful = [loss for loss in self._of_slot.get(slot, ()) if reused_len < loss.length < len(prompt_ids)]
        digests = PrefixDigests().at(_LOST, prompt_ids, sorted({loss.length for loss in useful}))
        same = (loss for loss in useful if loss.digest == digests[loss.length])
        return max(same, key=lambda loss: (loss.length, loss.at_s), default=None)

    def forget(self, slot: SlotKey) -> None:
        """Forget what ``slot`` lost."""
        self._of_slot.pop(slot, None)


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
