"""The ids of a conversation, as they are fed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cache.planner import TokenIds


class TokenBuffer:
    """Token ids that grow at the end and can be cut: uint32 [n]."""

    def __init__(self, ids: TokenIds | Iterable[int] = ()) -> None:
        first = np.array(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.uint32)
        self._ids: TokenIds = first
        self._n = len(first)

    def __len__(self) -> int:
        return self._n

    @property
    def view(self) -> TokenIds:
        """The ids, without a copy; valid until the buffer is next changed."""
        return self._ids[: self._n]

    @property
    def n_bytes(self) -> int:
        """Bytes held, spare room included."""
        return int(self._ids.nbytes)

    def append(self, token: int) -> bool:
        """Add one id; returns whether that took more memory."""
        has_grown = self._n == len(self._ids) and self._reserve(1)
        self._ids[self._n] = token
        self._n += 1
        return has_grown

    def extend(self, ids: TokenIds | Iterable[int]) -> None:
        """Add ids in order."""
        new = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, dtype=np.uint32)
        self._reserve(len(new))
        self._ids[self._n : self._n + len(new)] = new
        self._n += len(new)

    def truncate(self, n: int) -> None:
        """Forget the ids from ``n`` on."""
        assert 0 <= n <= self._n
        self._n = n

    def copy(self, n: int) -> TokenBuffer:
        """A buffer of its own with the first ``n`` ids."""
        return TokenBuffer(self.view[:n])

    def _reserve(self, n_more: int) -> bool:
        needed = self._n + n_more
        if needed <= len(self._ids):
            return False
        grown = np.empty(max(needed, len(self._ids) * 5 // 4, 64), dtype=np.uint32)
        grown[: self._n] = self.view
        self._ids = grown
        return True
