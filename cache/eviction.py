"""Chooses what is missed least when bytes are needed. Decides only; the store carries it out.

A victim's worth is the tokens to feed again if it were gone and asked for, over the bytes it frees,
over its age. One measure for whole entries and for checkpoints; a checkpoint is asked for only when a
prompt goes back behind the newest one, which is rare, and just there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cache.entry import Entry
from cache.ledger import Ledger
from cache.ring import weakest
from cache.slots import Assessment, Slot

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
    return None if best is None else Victim(best.entry, best.checkpoint)


def least_useful_entry(slot: Slot, ledger: Ledger, now: float) -> Victim:
    """The whole entry of least worth in ``slot``, which is not empty."""
    entries = [_assess_whole(slot, entry, ledger) for entry in slot]
    least = min(entries, key=lambda a: a.work_per_byte / _age_s(a.entry, now))
    return Victim(least.entry, None)


def _assess(slot: Slot, entry: Entry, ledger: Ledger) -> Iterable[Assessment]:
    yield _assess_whole(slot, entry, ledger)
    lengths = entry.ring.lengths
    index = weakest(lengths, len(entry), entry.keep)
    if index is not None:
        n_freed = ledger.freed_by(entry.ring.at(lengths[index]))
        if n_freed > 0:
            gap = lengths[index + 1] - lengths[index - 1]
            work = gap * ROLLBACK_RATE * gap / len(entry)
            yield Assessment(entry, lengths[index], work / n_freed)


def _assess_whole(slot: Slot, entry: Entry, ledger: Ledger) -> Assessment:
    n_freed = entry.n_own_bytes + sum(ledger.freed_by(c) for c in entry.ring.checkpoints)
    return Assessment(entry, None, slot.rebuild_work(entry) / n_freed)


def _age_s(entry: Entry, now: float) -> float:
    return PATIENCE_S + now - entry.used_at
