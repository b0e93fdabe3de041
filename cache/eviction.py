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
    best: Victim | None = None
    for slot in slots:
        for entry in slot:
            for victim in _victims(slot, entry, ledger, now):
                if best is None or victim.worth < best.worth:
                    best = victim
    return best


def _victims(slot: Slot, entry: Entry, ledger: Ledger, now: float) -> Iterable[Victim]:
    idle_s = max(now - entry.used_at, MIN_IDLE_S)
    freed = entry.n_own_bytes + sum(ledger.freed_by(c) for c in entry.ring.checkpoints)
    # An entry that came back before will come back again; a one-shot request will not.
    returns = 1 + min(entry.n_hits, 7)
    yield Victim(slot, entry, None, slot.rebuild_work(entry) * returns / (freed * idle_s))
    lengths = entry.ring.lengths
    index = weakest(lengths, len(entry), entry.keep)
    if index is not None:
        freed = ledger.freed_by(entry.ring.at(lengths[index]))
        if freed > 0:
            work = (lengths[index + 1] - lengths[index - 1]) * ROLLBACK_RATE
            yield Victim(slot, entry, lengths[index], work * returns / (freed * idle_s))
