"""Chooses what is missed least when bytes are needed. Decides only; the store carries it out.

A victim's worth is the work to rebuild it, over the bytes it frees, over the time since it was last
used. The same measure holds for a whole entry and for one checkpoint, except that a checkpoint is
needed only when a prompt goes back behind the newest one, which is rare.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cache.entry import Entry
from cache.ledger import Ledger
from cache.ring import weakest
from cache.slots import Slot

ROLLBACK_RATE = 0.02
"""Share of requests that go back behind the newest checkpoint: 114 of 6,272 in recorded sessions."""

MAX_COUNTED_HITS = 7
"""Further hits add nothing: a one-shot request must lose against a conversation, but a conversation
that was long must not outlive all others for ever."""

MIN_IDLE_S = 1.0
"""Ages below it count as it: who was used a moment ago is not worth a thousand times more."""


@dataclass(frozen=True, slots=True)
class Victim:
    """What to let go: the checkpoint at ``checkpoint`` of ``entry``, or all of it when that is None."""

    slot: Slot
    entry: Entry
    checkpoint: int | None
    worth: float


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
            work = (lengths[index + 1] - lengths[index - 1]) * ROLLBACK_RATE
            yield Victim(slot, entry, lengths[index], work * _demand(entry, now) / n_freed)


def _whole(slot: Slot, entry: Entry, ledger: Ledger, now: float) -> Victim:
    n_freed = entry.n_own_bytes + sum(ledger.freed_by(c) for c in entry.ring.checkpoints)
    return Victim(slot, entry, None, slot.rebuild_work(entry) * _demand(entry, now) / n_freed)


def _demand(entry: Entry, now: float) -> float:
    """How likely the entry is asked for: those that came back come back; the old are forgotten."""
    returns = 1 + min(entry.n_hits, MAX_COUNTED_HITS)
    return returns / max(now - entry.used_at, MIN_IDLE_S)
