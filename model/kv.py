"""The keys and values one full-attention layer has seen, in buffers with room to grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

STEP = 256
_GROWTH = 8  # a long buffer grows by an eighth, so that appending stays linear

Buffers = tuple[mx.array, ...]


def capacity_for(n_rows: int) -> int:
    """Rows to reserve for ``n_rows``: whole steps, with an eighth to spare for long buffers."""
    wanted = n_rows + n_rows // _GROWTH
    return -(-wanted // STEP) * STEP


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How rows are stored.

    Attributes:
        n_heads, head_dim: of the keys, and of the values.
        dtype: what the rows are computed in.
        bits: 0 to store them in ``dtype``; 8 or 4 to store them in groups with a scale and an offset.
    """

    n_heads: int
    head_dim: int
    dtype: mx.Dtype
    bits: int = 0

    @property
    def group_size(self) -> int:
        """Numbers that share a scale."""
        return next(size for size in (64, 32) if self.head_dim % size == 0)

    @property
    def row_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        width = self.n_heads * self.head_dim
        if not self.bits:
            return 2 * width * self.dtype.size
        return 2 * (width * self.bits // 8 + 2 * width // self.group_size * self.dtype.size)

    def encode(self, keys: mx.array, values: mx.array) -> Buffers:
        """Rows [B, H, n, D] in the form they are stored in."""
        if not self.bits:
            return keys, values
        return (*self._quantize(keys), *self._quantize(values))

    def decode(self, buffers: Buffers) -> tuple[mx.array, mx.array]:
        """Keys and values [B, H, n, D] of stored rows."""
        if not self.bits:
            return buffers[0], buffers[1]
        return self._dequantize(buffers[:3]), self._dequantize(buffers[3:])

    def empty(self) -> Buffers:
        """No rows and no room, for one sequence."""
        nothing = mx.zeros((1, self.n_heads, 0, self.head_dim), self.dtype)
        if not self.bits:
            return nothing, nothing
        packed = mx.zeros((1, self.n_heads, 0, self.head_dim * self.bits // 32), mx.uint32)
        scales = mx.zeros((1, self.n_heads, 0, self.head_dim // self.group_size), self.dtype)
        return (packed, scales, scales) * 2

    def _quantize(self, rows: mx.array) -> Buffers:
        packed, scales, offsets = mx.quantize(rows, self.group_size, self.bits)
        return packed, scales, offsets

    def _dequantize(self, stored: Buffers) -> mx.array:
        packed, scales, offsets = stored
        return mx.dequantize(packed, scales, offsets, self.group_size, self.bits)


class KvRows:
    """Rows of B sequences, [B, H, capacity, ...], of which the first ``length`` columns are in use.

    One sequence has B = 1; in a batch the shorter ones are padded on the left. MLX assigns to a slice in
    place only while nobody else holds the array: this object is the buffers' one owner and hands out
    views for the moment.
    """

    def __init__(self, layout: KvLayout, buffers: Buffers, length: int) -> None:
        self.layout = layout
        self.length = length
        self._buffers = buffers

    @classmethod
    def empty(cls, layout: KvLayout) -> KvRows:
        """No rows and no room yet, for one sequence."""
        return cls(layout, layout.empty(), 0)

    @property
    def capacity(self) -> int:
        return int(self._buffers[0].shape[2])

    @property
    def is_full(self) -> bool:
        """One more row takes more memory."""
        return self.length == self.capacity

    @property
    def n_bytes(self) -> int:
        return sum(int(buffer.nbytes) for buffer in self._buffers)

    @property
    def arrays(self) -> Buffers:
        """What has to be evaluated for this object to be up to date."""
        return self._buffers

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows [B, H, n, D]; returns keys and values [B, H, length, D] of everything in use."""
        self.push(keys, values)
        return self.layout.decode(self._used(slice(None), 0, self.length))

    def push(self, keys: mx.array, values: mx.array) -> None:
        """Add rows [B, H, n, D]."""
        start, n_rows = self.length, keys.shape[2]
        for buffer, rows in zip(self.reserve(n_rows), self.layout.encode(keys, values), strict=True):
            buffer[:, :, start : start + n_rows] = rows

    def reserve(self, n_rows: int) -> Buffers:
        """Count ``n_rows`` more columns as in use, and return the buffers, in which they are to be filled."""
        end = self.length + n_rows
        if end > self.capacity:
            self._buffers = self._grown(end)
        self.length = end
        return self._buffers

    def reserved(self, multiple: int | None = None) -> tuple[mx.array, mx.array]:
        """Keys and values [B, H, n, D] of what is in use and of columns behind it, which are finite and
        nobody's: all there are, or up to the next multiple of a divisor of :data:`STEP`."""
        n = self.capacity if multiple is None else -(-self.length // multiple) * multiple
        return self.layout.decode(self._used(slice(None), 0, n))

    def truncate(self, n_rows: int) -> None:
        """Forget the rows from ``n_rows`` on; their memory stays reserved."""
        assert 0 <= n_rows <= self.length
        self.length = n_rows

    def copy(self, n_rows: int) -> KvRows:
        """The first ``n_rows`` rows in buffers of their own."""
        assert 0 <= n_rows <= self.length
        return _on_its_own(self.layout, self._used(slice(None), 0, n_rows), n_rows)

    def row(self, index: int, n_padding: int, n_rows: int) -> KvRows:
        """Sequence ``index`` of a batch, ``n_rows`` columns after its padding, in buffers of its own."""
        assert n_padding + n_rows <= self.length
        used = self._used(slice(index, index + 1), n_padding, n_padding + n_rows)
        return _on_its_own(self.layout, used, n_rows)

    def _used(self, which: slice, start: int, end: int) -> Buffers:
        return tuple(buffer[which, :, start:end] for buffer in self._buffers)

    def _grown(self, n_rows: int) -> Buffers:
        room = capacity_for(n_rows) - self.length
        return tuple(_with_room(used, 0, room) for used in self._used(slice(None), 0, self.length))


@dataclass(frozen=True, slots=True)
class Members:
    """Sequences that stand in one buffer, all flush right at its last column in use.

    Attributes:
        rows: the buffer.
        at: which of its sequences, in the order wanted; None for all of them.
    """

    rows: KvRows
    at: Sequence[int] | None = None


def merge(parts: Sequence[Members], length: int) -> KvRows:
    """One buffer for the sequences of ``parts``, one after the other, flush right at column ``length``; lazy.

    None of them is longer than that: what stands further left in its old buffer is padding. A whole buffer
    that stands right already is returned as it is.
    """
    first = parts[0]
    if len(parts) == 1 and first.at is None and first.rows.length == length:
        return first.rows
    room = capacity_for(length) - length
    if first.rows.length == length and STEP // 4 <= first.rows.capacity - length < room:
        room = first.rows.capacity - length  # the first are often the most, and can be taken as they stand
    stacked = [
        mx.concatenate(list(buffers)) if len(buffers) > 1 else buffers[0]
        for buffers in zip(*(_moved(part, length, room) for part in parts), strict=True)
    ]
    return KvRows(first.rows.layout, tuple(stacked), length)


def _moved(part: Members, length: int, room: int) -> Buffers:
    """The buffers of ``part`` with ``length`` columns in use and ``room`` behind them."""
    rows, at = part.rows, part.at
    buffers = rows._buffers
    if rows.length != length or rows.capacity != length + room:
        used = rows._used(slice(None), max(rows.length - length, 0), rows.length)
        buffers = tuple(_with_room(side, max(length - rows.length, 0), room) for side in used)
    return buffers if at is None else tuple(side[mx.array(list(at))] for side in buffers)


def _on_its_own(layout: KvLayout, used: Buffers, length: int) -> KvRows:
    """The ``length`` rows ``used`` of one sequence, copied, with room to grow."""
    room = capacity_for(length) - length
    copied = tuple(_with_room(side, 0, room) for side in used)
    mx.eval(*copied)  # before anybody writes to the rows it was copied from
    return KvRows(layout, copied, length)


def _with_room(x: mx.array, before: int, after: int) -> mx.array:
    return mx.pad(x, [(0, 0), (0, 0), (before, after), (0, 0)])
