"""The keys and values one full-attention layer has seen of one sequence, in a buffer with room to grow."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

STEP = 256
_GROWTH = 8  # a long buffer grows by an eighth, so that appending stays linear


def capacity_for(n_rows: int) -> int:
    """Rows to reserve for ``n_rows``: whole steps, with an eighth to spare for long buffers."""
    wanted = n_rows + n_rows // _GROWTH
    return -(-wanted // STEP) * STEP


class KvRows:
    """Keys and values [B, H, capacity, D] of which the first ``length`` columns are in use.

    One sequence has B = 1; in a batch the shorter ones are padded on the left.

    MLX assigns to a slice in place only while nobody else holds the array: this object is the
    buffers' one owner and hands out views for the moment.
    """

    def __init__(self, keys: mx.array, values: mx.array, length: int) -> None:
        self.keys = keys
        self.values = values
        self.length = length

    @classmethod
    def empty(cls, n_heads: int, head_dim: int, dtype: mx.Dtype) -> KvRows:
        """No rows and no room yet, for one sequence."""
        nothing = mx.zeros((1, n_heads, 0, head_dim), dtype)
        return cls(nothing, nothing, 0)

    @property
    def capacity(self) -> int:
        return int(self.keys.shape[2])

    @property
    def n_bytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """What has to be evaluated for this object to be up to date."""
        return (self.keys, self.values)

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows [1, H, n, D]; returns views [1, H, length, D] of everything valid."""
        start, end = self.length, self.length + keys.shape[2]
        self._reserve(end)
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def truncate(self, n_rows: int) -> None:
        """Forget the rows from ``n_rows`` on; their memory stays reserved."""
        assert 0 <= n_rows <= self.length
        self.length = n_rows

    def copy(self, n_rows: int) -> KvRows:
        """The first ``n_rows`` rows in buffers of their own."""
        assert 0 <= n_rows <= self.length
        return _padded([self.keys[:, :, :n_rows]], [self.values[:, :, :n_rows]], n_rows)

    def row(self, index: int, n_rows: int) -> KvRows:
        """Sequence ``index`` of a batch, its last ``n_rows`` columns, in buffers of its own."""
        where = (slice(index, index + 1), slice(None), slice(self.length - n_rows, self.length))
        return _padded([self.keys[where]], [self.values[where]], n_rows)

    def _reserve(self, n_rows: int) -> None:
        if n_rows <= self.capacity:
            return
        room = capacity_for(n_rows) - self.length
        self.keys = _with_room(self.keys[:, :, : self.length], 0, room)
        self.values = _with_room(self.values[:, :, : self.length], 0, room)


def merge(sequences: Sequence[KvRows]) -> KvRows:
    """One padded buffer for several sequences (of B = 1); a lone one is returned as it is."""
    if len(sequences) == 1:
        return sequences[0]
    length = max(rows.length for rows in sequences)
    keys = [rows.keys[:, :, : rows.length] for rows in sequences]
    values = [rows.values[:, :, : rows.length] for rows in sequences]
    return _padded(keys, values, length)


def _padded(keys: list[mx.array], values: list[mx.array], length: int) -> KvRows:
    """Stack sequences [1, H, n <= length, D], flush right at column ``length``, with room to grow."""
    room = capacity_for(length) - length
    parts = [[_with_room(x, length - x.shape[2], room) for x in side] for side in (keys, values)]
    stacked = [side[0] if len(side) == 1 else mx.concatenate(side) for side in parts]
    return KvRows(stacked[0], stacked[1], length)


def _with_room(x: mx.array, before: int, after: int) -> mx.array:
    return mx.pad(x, [(0, 0), (0, 0), (before, after), (0, 0)])
