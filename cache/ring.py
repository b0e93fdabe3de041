"""Keeps the checkpoints of one entry, ascending, and tells which is missed least when few may stay.

Pure: decides by positions and bytes, never looks into a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cache.state import Checkpoint

NEAR_TOKENS = 8192
"""Within this distance from the end all gaps weigh alike: reading so little again is hardly felt."""


@dataclass(frozen=True, slots=True)
class RingLimits:
    """What one entry's ring may hold.

    Attributes:
        max_bytes: of all its checkpoints together; None for no limit but the budget of the whole store,
            which knows better what else the bytes are good for.
    """

    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 0:
            raise ValueError("a ring cannot hold less than nothing")


def weakest(positions: Sequence[int], end: int, keep: Collection[int] = ()) -> int | None:
    """The index in ``positions`` (ascending) that is missed least, or None when none may go.

    The first and the newest position never go, nor those in ``keep``.
    """
    candidates = [i for i in range(1, len(positions) - 1) if positions[i] not in keep]
    return min(
        candidates,
        key=lambda i: _loss(positions[i - 1], positions[i], positions[i + 1], end),
        default=None,
    )


def spread(positions: Sequence[int], end: int, keep: Collection[int], max_count: int) -> list[int]:
    """``positions`` (ascending) without the :func:`weakest`, one after another, until ``max_count``
    are left or none may go; for thousands of them."""
    after = dict(pairwise(positions))
    before = {b: a for a, b in after.items()}
    heap = [(_loss(before[p], p, after[p], end), p) for p in positions[1:-1] if p not in keep]
    heapify(heap)
    left = set(positions)
    while len(left) > max_count and heap:
        loss, p = heappop(heap)
        if p not in left or loss != _loss(before[p], p, after[p], end):
            continue  # gone, or weighed before a neighbour went
        left.remove(p)
        before[after[p]], after[before[p]] = before[p], after[p]
        for q in (before[p], after[p]):
            if q in before and q in after and q not in keep:
                heappush(heap, (_loss(before[q], q, after[q], end), q))
    return sorted(left)


def _loss(before: int, position: int, after: int, end: int) -> float:
    """What dropping ``position`` costs: the gap it opens, weighed by its distance from ``end``.

    An edit far back re-reads much in any case, one near the end should not. So the smallest gap goes
    first, and beyond :data:`NEAR_TOKENS` gaps come to grow with the distance.
    """
    return (after - before) / (NEAR_TOKENS + end - position)


class CheckpointRing:
    """The checkpoints of one entry, ascending by length, one for a length."""

    def __init__(self, limits: RingLimits, checkpoints: Iterable[Checkpoint] = ()) -> None:
        self.limits = limits
        self._by_length = {c.length: c for c in sorted(checkpoints, key=lambda c: c.length)}

    def __len__(self) -> int:
        return len(self._by_length)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions held, ascending, in tokens."""
        return tuple(self._by_length)

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """What is held, ascending by length."""
        return tuple(self._by_length.values())

    @property
    def n_bytes(self) -> int:
        """Bytes of all checkpoints held."""
        return sum(c.n_bytes for c in self._by_length.values())

    def at(self, length: int) -> Checkpoint:
        """The checkpoint at exactly ``length``.

        Raises:
            KeyError: none is held there.
        """
        return self._by_length[length]

    def add(self, checkpoint: Checkpoint) -> None:
        """Hold ``checkpoint``; one that is already held at its length stays (they are equal)."""
        if checkpoint.length in self._by_length:
            return
        held = [*self._by_length.values(), checkpoint]
        self._by_length = {c.length: c for c in sorted(held, key=lambda c: c.length)}

    def remove(self, length: int) -> Checkpoint:
        """Let go of the checkpoint at ``length`` and return it."""
        return self._by_length.pop(length)

    def retain(self, survives: Callable[[int], bool]) -> None:
        """Keep only the checkpoints whose length ``survives``."""
        self._by_length = {n: c for n, c in self._by_length.items() if survives(n)}

    def thin(self, *, end: int, keep: Collection[int] = ()) -> None:
        """Drop the weakest checkpoints until the limit holds, if there is one.

        Args:
            end: length of the live state, in tokens; distances are measured from it.
            keep: lengths that must stay; like the first and the newest they may exceed the limit.
        """
        while self.limits.max_bytes is not None and self.n_bytes > self.limits.max_bytes:
            lengths = self.lengths
            index = weakest(lengths, end, keep)
            if index is None:
                return
            self.remove(lengths[index])
