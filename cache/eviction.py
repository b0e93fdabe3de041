"""Chooses what is missed least when bytes are needed. Decides only; the store carries it out.

A victim's worth is the tokens to feed again if it were gone and asked for, over the bytes it frees,
over its age. One measure for whole entries and for checkpoints; a checkpoint is asked for only when a
prompt goes back behind the newest one, which is rare, and just there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cache.entry import Conversation, Entry, RunningEntry
from cache.ring import weakest
from cache.slots import Assessment, Ledger, Slot

ROLLBACK_RATE = 0.02
"""Share of requests that go back behind the newest checkpoint: 114 of 6,272 in recorded sessions."""

PATIENCE_S = 300.0
"""A pause so long is ordinary within a conversation. Ages count from there, so that among those in use
the dear ones stay, not the ones that happened to speak last."""


@dataclass(frozen=True, slots=True)
class Victim:
    """What to let go: the checkpoint at ``checkpoint`` of ``entry``, or all of it when that is None."""

    entry: Entry
    checkpoint: int | None
    worth: float


@dataclass(frozen=True, slots=True)
class Spare:
    """A checkpoint that a running entry can do without."""

    entry: RunningEntry
    checkpoint: int
    worth: float


ChooseVictim = Callable[[Iterable[Slot], Ledger, float], Victim | None]
"""Chooses among all slots at a time in seconds; None when nothing is at rest."""


def least_useful(slots: Iterable[Slot], ledger: Ledger, now: float) -> Victim | None:
    """The victim of least worth over all ``slots``; None when nothing is at rest."""
    best, least = None, float("inf")
    for slot in slots:
        if slot.assessments is None:
            slot.assessments = tuple(a for entry in slot for a in _assess(slot, entry, ledger))
        for assessment in slot.assessments:
            worth = assessment.work_per_byte / _age_s(assessment.entry, now)
            if worth < least:
                best, least = assessment, worth
    return None if best is None else Victim(best.entry, best.checkpoint, least)


def least_useful_entry(slot: Slot, ledger: Ledger, now: float) -> Victim:
    """The whole entry of least worth in ``slot``, which is not empty."""
    whole = [(_assess_whole(slot, e, ledger).work_per_byte / _age_s(e, now), e) for e in slot]
    worth, entry = min(whole, key=lambda pair: pair[0])
    return Victim(entry, None, worth)


def least_useful_spare(running: Iterable[RunningEntry], ledger: Ledger) -> Spare | None:
    """The checkpoint that a running entry misses least; None when they have none to spare. Their
    states are never touched."""
    spares = (
        Spare(entry, length, work_per_byte / PATIENCE_S)
        for entry in running
        for length, work_per_byte in _assess_weakest(entry, ledger)
    )
    return min(spares, key=lambda spare: spare.worth, default=None)


def _assess(slot: Slot, entry: Entry, ledger: Ledger) -> Iterable[Assessment]:
    yield _assess_whole(slot, entry, ledger)
    for length, work_per_byte in _assess_weakest(entry, ledger):
        yield Assessment(entry, length, work_per_byte)


def _assess_whole(slot: Slot, entry: Entry, ledger: Ledger) -> Assessment:
    n_freed = entry.n_own_bytes + sum(ledger.freed_by(c) for c in entry.ring.checkpoints)
    return Assessment(entry, None, slot.rebuild_work(entry) / n_freed)


def _assess_weakest(entry: Conversation, ledger: Ledger) -> Iterable[tuple[int, float]]:
    """The weakest checkpoint of a ring and its work per byte; nothing when it must or may as well stay."""
    lengths = entry.ring.lengths
    index = weakest(lengths, len(entry), entry.keep)
    if index is None:
        return
    n_freed = ledger.freed_by(entry.ring.at(lengths[index]), is_counted=isinstance(entry, Entry))
    if n_freed > 0:
        gap = lengths[index + 1] - lengths[index - 1]
        yield lengths[index], gap * ROLLBACK_RATE * gap / (len(entry) * n_freed)


def _age_s(entry: Entry, now: float) -> float:
    return PATIENCE_S + now - entry.used_at
