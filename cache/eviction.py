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
from cache.slots import Slot

ROLLBACK_RATE = 0.02
"""Share of requests that go back behind the newest checkpoint: 114 of 6,272 in recorded sessions."""

PATIENCE_S = 300.0
"""A pause so long is ordinary within a conversation. Ages count from there, so that among those in use
the dear ones stay, not the ones that happened to speak last."""


@dataclass(frozen=True, slots=True)
class Victim:
    """What to let go: the checkpoint at ``checkpoint`` of ``entry``, or all of it when that is None."""

    slot: Slot
    entry: Entry
    checkpoint: int | None
    worth: float


ChooseVictim = Callable[[Iterable[Slot], Ledger, float], Victim | None]
"""Chooses among all slots at a time in seconds; None when nothing is at rest."""


def least_useful(slots: Iterable[Slot], ledger: Ledger, now: float) -> Victim | None:
    """The victim of least worth over all ``slots``; None when nothing is at rest."""
    victims = (v for slot in slots for entry in slot for v in _victims(slot, entry, ledger, now))
    return min(victims, key=lambda victim: victim.worth, default=None)


def least_useful_entry(slot: Slot, ledger: Ledger, now: float) -> Victim:
    """The whole entry of least worth in ``slot``, which is not empty."""
    return min((_whole(slot, e, ledger, now) for e in slot), key=lambda victim: victim.worth)


def _victims(slot: Slot, entry: Entry, ledger: Ledger, now: float) -> Iterable[Victim]:
    yield _whole(slot, entry, ledger, now)
    lengths = entry.ring.lengths
    index = weakest(lengths, len(entry), entry.keep)
    if index is not None:
        n_freed = ledger.freed_by(entry.ring.at(lengths[index]))
        if n_freed > 0:
            gap = lengths[index + 1] - lengths[index - 1]
            work = gap * ROLLBACK_RATE * gap / len(entry)
            yield Victim(slot, entry, lengths[index], work / (n_freed * _age_s(entry, now)))


def _whole(slot: Slot, entry: Entry, ledger: Ledger, now: float) -> Victim:
    n_freed = entry.n_own_bytes + sum(ledger.freed_by(c) for c in entry.ring.checkpoints)
    return Victim(slot, entry, None, slot.rebuild_work(entry) / (n_freed * _age_s(entry, now)))


def _age_s(entry: Entry, now: float) -> float:
    return PATIENCE_S + now - entry.used_at
