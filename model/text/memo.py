"""Remembers computed values by text, up to so many bytes; the least recently used go first."""

from __future__ import annotations

import sys
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

N_BYTES_PER_ENTRY = 200
"""Roughly what a dictionary entry and an array's header cost on top of text and ids."""


class IdsMemo:
    """Token ids of text segments. Owns nothing but memory: dropping an entry costs time, never truth.

    Args:
        budget_bytes: what keys and ids may hold together; a value larger than all of it is not kept.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.n_bytes = 0
        self._ids: OrderedDict[str, NDArray[np.uint32]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def get(self, text: str) -> NDArray[np.uint32] | None:
        """The ids kept for ``text``, which becomes the most recently used; None when there are none."""
        ids = self._ids.get(text)
        if ids is not None:
            self._ids.move_to_end(text)
        return ids

    def put(self, text: str, ids: NDArray[np.uint32]) -> None:
        """Keep ``ids``, which must not change any more, and drop the oldest entries over the budget."""
        n_bytes = _cost(text, ids)
        if n_bytes > self.budget_bytes or text in self._ids:
            return
        self._ids[text] = ids
        self.n_bytes += n_bytes
        while self.n_bytes > self.budget_bytes:
            self.n_bytes -= _cost(*self._ids.popitem(last=False))


def _cost(text: str, ids: NDArray[np.uint32]) -> int:
    return sys.getsizeof(text) + ids.nbytes + N_BYTES_PER_ENTRY
