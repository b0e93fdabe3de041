"""Chooses what is missed least when bytes are needed. Decides only; the store carries it out.

Three things can go: a checkpoint; the end of a conversation, back to its newest checkpoint; a conversation
whole. The worth of each is the tokens to feed again if it were gone, times how likely they are asked for,
over the bytes it frees, over its age.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cache.boundaries import FIRST_MARK, Place
from cache.entry import Conversation, Entry, RunningEntry, Standing
from cache.slots import Assessment, Habits, Ledger, Slot

Positions = npt.NDArray[np.int64]
Chances = npt.NDArray[np.float64]

PATIENCE_S = 300.0
"""A pause so long is ordinary within a conversation. Ages count from there, so that among those in use
the dear ones stay, not the ones that happened to speak last."""

_LEAST_GOING_ON = 0.05
"""However surely prompts left a conversation before its end, the next one may not."""

_FAR_BACK = 0.25
"""The share of returns that go to any place of a kind alike."""

_LEFT_BEHIND = 1e-3
"""What is left of the worth of a conversation that was only guessed, or whose place another one took."""


@dataclass(frozen=True, slots=True)
class Victim:
    """What to let go of ``entry``: the checkpoint at ``checkpoint`` or, when that is None, all that lies
    behind its checkpoint at ``cut_at``; all of it when that is 0."""

    entry: Entry
    checkpoint: int | None
    worth: float
    cut_at: int = 0


@dataclass(frozen=True, slots=True)
class Spare:
    """A checkpoint that a running entry can do without."""

    entry: RunningEntry
    checkpoint: int
    worth: float

    @property
    def outweighs_rows(self) -> bool:
        """Whether its bytes are worth more than as many of the entry's rows."""
        return self.worth * PATIENCE_S * self.entry.n_own_bytes >= len(self.entry)


ChooseVictim = Callable[[Iterable[Slot], Ledger, Habits, float], Victim | None]
"""Chooses among all slots at a time in seconds; None when nothing is at rest."""


def least_useful(slots: Iterable[Slot], ledger: Ledger, habits: Habits, now: float) -> Victim | None:
    """The victim of least worth over all ``slots``; None when nothing is at rest."""
    best, least = None, math.inf
    for slot in slots:
        if slot.assessments is None or slot.key in ledger.stale:
            # Whatever goes of an entry, its age is the same: the least of it is all that matters.
            slot.assessments = tuple(
                min(_assess(slot, entry, ledger, habits), key=lambda a: a.work_per_byte) for entry in slot
            )
        for assessment in slot.assessments:
            worth = assessment.work_per_byte * _standing(assessment.entry, now)
            if worth < least:
                best, least = assessment, worth
    ledger.stale.clear()
    if best is None:
        return None
    return Victim(best.entry, best.checkpoint, least, best.cut_at)


def least_useful_entry(slot: Slot, ledger: Ledger, now: float) -> Victim:
    """The whole entry of least worth in ``slot``, which is not empty."""
    whole = [(_assess_whole(slot, e, ledger).work_per_byte * _standing(e, now), e) for e in slot]
    worth, entry = min(whole, key=lambda pair: pair[0])
    return Victim(entry, None, worth)


def least_useful_spare(running: Iterable[RunningEntry], ledger: Ledger, habits: Habits) -> Spare | None:
    """The checkpoint that a running entry misses least; None when they have none to spare. Their
    states are never touched."""
    spares = (
        Spare(entry, length, work_per_byte / PATIENCE_S)
        for entry in running
        for length, work_per_byte in _assess_checkpoints(entry, ledger, habits)
    )
    return min(spares, key=lambda spare: spare.worth, default=None)


def _assess(slot: Slot, entry: Entry, ledger: Ledger, habits: Habits) -> Iterator[Assessment]:
    # An entry goes whole when it cannot be cut, or another one begins with most of it.
    if len(entry.ring) == 0 or 2 * slot.rebuild_work(entry) < len(entry):
        yield _assess_whole(slot, entry, ledger)
    if len(entry.ring):
        yield _assess_end(slot, entry, ledger, habits)
    for length, work_per_byte in _assess_checkpoints(entry, ledger, habits):
        yield Assessment(entry, length, work_per_byte)


def _assess_whole(slot: Slot, entry: Entry, ledger: Ledger) -> Assessment:
    n_freed = entry.n_own_bytes + sum(ledger.freed_by(c) for c in entry.ring.checkpoints)
    return Assessment(entry, None, slot.rebuild_work(entry) / n_freed)


def _assess_end(slot: Slot, entry: Entry, ledger: Ledger, habits: Habits) -> Assessment:
    """All behind the newest checkpoint, whose place the live state then takes. It saves work only where the
    next prompt goes on from the very end: not after a thought that the template strips."""
    newest = entry.ring.checkpoints[-1]
    n_rows_bytes = max(0, entry.n_own_bytes - newest.n_bytes)
    n_freed = n_rows_bytes * (len(entry) - newest.length) // len(entry) + ledger.freed_by(newest)
    goes_on = 1.0 - sum(_returns_between(entry, np.array([0, len(entry)]), habits))
    if len(entry) in entry.next_points:
        goes_on += habits.next_rate / len(entry.next_points)
    work = min(len(entry) - newest.length, slot.rebuild_work(entry)) * max(goes_on, _LEAST_GOING_ON)
    return Assessment(entry, None, work / max(n_freed, 1), cut_at=newest.length)


def _assess_checkpoints(entry: Conversation, ledger: Ledger, habits: Habits) -> Iterator[tuple[int, float]]:
    """Every checkpoint that frees something, and the work it is expected to save, per byte.

    Without one, a prompt that leaves the conversation between it and the next goes back to the one before.
    It is wanted also by the chance that memory runs short: then the conversation is cut at a checkpoint,
    and the longer the gap, the more is lost beyond need.
    """
    lengths = entry.ring.lengths
    if not lengths:
        return
    likelihoods = _returns_between(entry, np.array([*lengths, len(entry)]), habits)
    for before, length, likelihood in zip((0, *lengths), lengths, likelihoods, strict=False):
        n_freed = ledger.freed_by(entry.ring.at(length), is_counted=isinstance(entry, Entry))
        if n_freed > 0:
            gap = length - before
            yield length, (likelihood + habits.shortage * gap / (2 * len(entry))) * gap / n_freed


def _returns_between(entry: Conversation, lengths: Positions, habits: Habits) -> list[float]:
    """How likely the next prompt leaves ``entry`` in each of the stretches between ``lengths`` [n + 1],
    ascending: n probabilities.

    Every kind of place has its rate. Among the places of a kind the nearer to the end are likelier
    (:func:`_nearest_first`); inside messages it is the stretches that grow with their distance from the end.
    """
    n, shape, slot = len(entry), entry.shape, entry.slot
    questions = [p for p in shape.questions if p < n]
    others = set(shape.message_starts) - set(shape.questions)
    messages = sorted(p for p in others if shape.system_end < p < n)
    next_points = [p for p in shape.shared_points if p <= n]
    system = [p for p in (shape.system_end - FIRST_MARK, shape.system_end) if 0 < p <= n]
    places, chances = (
        [*questions, *messages, *next_points, *system],
        np.concatenate(
            [
                _nearest_first(len(questions)) * habits.return_rate(slot, Place.QUESTION),
                _nearest_first(len(messages)) * habits.return_rate(slot, Place.MESSAGE),
                _evenly(len(next_points)) * habits.next_rate,
                _evenly(len(system)) * habits.return_rate(slot, Place.SYSTEM),
            ]
        ),
    )
    at_places, _ = np.histogram(places, bins=lengths, weights=chances)
    distance = np.log(FIRST_MARK + n - lengths)
    inside = -np.diff(distance) / np.log((FIRST_MARK + n) / FIRST_MARK)
    return list(at_places + inside * habits.return_rate(slot, Place.INSIDE))


def _nearest_first(n: int) -> Chances:
    """Chances of ``n`` places in order, [n], 1 in all: most of it as 1, 1/2, 1/3, ... from the last one back,
    the rest evenly, for some who go back go back far."""
    if n == 0:
        return np.zeros(0)
    weights: Chances = 1.0 / np.arange(n, 0, -1)
    nearest: Chances = weights / weights.sum()
    return (1 - _FAR_BACK) * nearest + _FAR_BACK * _evenly(n)


def _evenly(n: int) -> Chances:
    return np.full(n, 1.0 / n) if n else np.zeros(0)


def _standing(entry: Entry, now: float) -> float:
    """What age and expectations leave of a worth."""
    expected = 1.0 if entry.standing is Standing.GOING_ON else _LEFT_BEHIND
    return expected / (PATIENCE_S + now - entry.used_at)
