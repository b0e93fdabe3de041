"""Gives memory back: MLX's pool when nothing is done, conversations when the machine runs short."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from cache.store import Store

CHECK_S = 2.0
"""Seconds between two questions how the machine's memory stands."""
LEAST_BUDGET = 64 * 2**20
_REGAINED = 16  # a sixteenth of the whole budget comes back at a time


class Relief:
    """Shrinks the store's budget while the machine is short of memory, and lets it grow back afterwards.

    Args:
        store: what conversations are held in.
        is_short: whether the machine is short of memory now.
        clock: seconds, monotonic.
    """

    def __init__(self, store: Store, is_short: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._store = store
        self._is_short = is_short
        self._clock = clock
        self._whole = store.budget_bytes
        self._next_check = clock()

    def check(self) -> None:
        """Adapt the budget, if it is time to ask again."""
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        store = self._store
        if self._is_short():
            kept = min(store.budget_bytes, store.n_bytes) * 3 // 4
            store.budget_bytes = max(LEAST_BUDGET, kept)
            store.enforce()
            mx.clear_cache()
        elif store.budget_bytes < self._whole:
            store.budget_bytes = min(self._whole, store.budget_bytes + self._whole // _REGAINED)
            store.enforce()  # what may rest beyond a budget ends with it

    def rest(self) -> None:
        """Nothing is left to do: what MLX keeps for the next arrays goes back to the system."""
        mx.clear_cache()
