"""All that a model remembers of one sequence: rows of keys and values that can be cut, recurrent states that
cannot.

Structurally :class:`State` and :class:`Checkpoint` are ``SequenceState`` and ``Checkpoint`` of
``cache/state.py``; neither side imports the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from model.checkpoint.config import ModelConfig

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
        """Whether one more row takes more memory."""
        return self.length == self.capacity

    @property
    def n_bytes(self) -> int:
        return sum(int(buffer.nbytes) for buffer in self._buffers)

    @property
    def arrays(self) -> Buffers:
        """The arrays to evaluate for this object to be up to date."""
        return self._buffers

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows [B, H, n, D]; returns keys and values [B, H, length, D] of everything in use."""
        self.push(keys, values)
        return self.layout.decode(self.stored)

    @property
    def stored(self) -> Buffers:
        """Everything in use, [B, H, length, ...], in the form it is stored in."""
        return self._used(slice(None), 0, self.length)

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
        """Keys and values [B, H, n, D] of the columns in use and of spare ones behind them, whose values are
        finite and mean nothing: all of them, or up to the next multiple of ``multiple``, a divisor of
        :data:`STEP`."""
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

    def moved(self, length: int, room: int) -> Buffers:
        """The rows at the right end of ``length`` columns in use, with ``room`` more behind; lazy. The
        present buffers where they already have that form."""
        if self.length == length and self.capacity == length + room:
            return self._buffers
        used = self._used(slice(None), max(self.length - length, 0), self.length)
        return tuple(_with_room(side, max(length - self.length, 0), room) for side in used)

    def _used(self, which: slice, start: int, end: int) -> Buffers:
        return tuple(buffer[which, :, start:end] for buffer in self._buffers)

    def _grown(self, n_rows: int) -> Buffers:
        room = capacity_for(n_rows) - self.length
        return tuple(_with_room(used, 0, room) for used in self._used(slice(None), 0, self.length))


def _on_its_own(layout: KvLayout, used: Buffers, length: int) -> KvRows:
    """The ``length`` rows ``used`` of one sequence, copied, with room to grow."""
    room = capacity_for(length) - length
    copied = tuple(_with_room(side, 0, room) for side in used)
    mx.eval(*copied)  # before anybody writes to the rows it was copied from
    return KvRows(layout, copied, length)


def _with_room(x: mx.array, before: int, after: int) -> mx.array:
    return mx.pad(x, [(0, 0), (0, 0), (before, after), (0, 0)])


@dataclass(frozen=True, slots=True)
class Recurrent:
    """What one GDN layer remembers.

    Attributes:
        window: the last K - 1 rows that entered the convolution, [1, K - 1, C].
        matrix: the recurrent state, [1, Hv, Dv, Dk], float32.
    """

    window: mx.array
    matrix: mx.array

    @property
    def n_bytes(self) -> int:
        return int(self.window.nbytes + self.matrix.nbytes)

    def detached(self) -> Recurrent:
        """The same in buffers of their own size: a kept view would pin the array it looks into."""
        return Recurrent(mx.contiguous(self.window), mx.contiguous(self.matrix))

    def row(self, index: int) -> Recurrent:
        """Of several sequences' states the one of sequence ``index``, in buffers of its own."""
        at = slice(index, index + 1)
        return Recurrent(self.window[at], self.matrix[at]).detached()

    def rows(self, at: mx.array) -> Recurrent:
        """The states of the sequences ``at``, [b], in that order."""
        return Recurrent(self.window[at], self.matrix[at])


def stack_recurrent(layers: Sequence[Recurrent]) -> Recurrent:
    """The states of several sequences as one; a lone one is returned as it is."""
    if len(layers) == 1:
        return layers[0]
    return Recurrent(
        mx.concatenate([layer.window for layer in layers]), mx.concatenate([layer.matrix for layer in layers])
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The recurrent states after exactly ``length`` tokens. Arrays are values: nothing changes them.

    Attributes:
        hidden: of the last token, [1, 1, H] after the last norm, for :class:`MtpRows`; None where nobody
            needs it, or knows it.
    """

    length: int
    layers: tuple[Recurrent, ...]
    hidden: mx.array | None = None

    @property
    def n_bytes(self) -> int:
        hidden = 0 if self.hidden is None else int(self.hidden.nbytes)
        return hidden + sum(layer.n_bytes for layer in self.layers)

    @property
    def arrays(self) -> Iterator[mx.array]:
        for layer in self.layers:
            yield layer.window
            yield layer.matrix
        if self.hidden is not None:
            yield self.hidden


class MtpRows:
    """What a multi-token prediction head remembers of one sequence (``model/layers/mtp.py``).

    The row of a token is made from the token and from what the model gave for the one before it. The first
    token of a sequence has none, and those of a state that was stored without a head have none either: rows
    begin at token ``first``, and reach from there to the last.

    Attributes:
        kv: the rows.
        width: H, of ``hidden``.
        first: the token that the first of them is for, or will be.
        hidden: of the last token, as in :class:`Checkpoint`; None where it is not known: the next token then
            gets no row.
    """

    def __init__(self, kv: KvRows, width: int, first: int = 1, hidden: mx.array | None = None) -> None:
        self.kv = kv
        self.width = width
        self.first = first
        self.hidden = hidden

    @property
    def n_bytes(self) -> int:
        return self.kv.n_bytes + (0 if self.hidden is None else int(self.hidden.nbytes))

    @property
    def arrays(self) -> Iterator[mx.array]:
        yield from self.kv.arrays
        if self.hidden is not None:
            yield self.hidden

    def n_rows(self, n_tokens: int) -> int:
        """How many of the rows are for the first ``n_tokens`` tokens."""
        return max(n_tokens - self.first, 0)

    def go_back(self, n_tokens: int, hidden: mx.array | None) -> None:
        """Forget what is not for the first ``n_tokens`` tokens; ``hidden`` is of the last of them.

        Where that is not known the next token will have no row, and rows with a gap would put what follows
        at wrong distances: they begin anew behind it.
        """
        if n_tokens > 0 and hidden is None:
            self.first = n_tokens + 1
        self.kv.truncate(self.n_rows(n_tokens))
        if not self.kv.length:
            self.first = max(n_tokens + (hidden is None), 1)
        self.hidden = hidden

    def copy(self, n_tokens: int, hidden: mx.array | None) -> MtpRows:
        """The same in buffers of its own, gone back to ``n_tokens``."""
        known = self.n_rows(n_tokens) if hidden is not None else 0
        copied = MtpRows(self.kv.copy(known), self.width, self.first, self.hidden)
        copied.go_back(n_tokens, None if hidden is None else mx.array(hidden))
        return copied

    def shrink(self) -> None:
        """Give back the memory of rows that were cut."""
        if capacity_for(self.kv.length) < self.kv.capacity:
            self.kv = self.kv.copy(self.kv.length)

    def check(self, n_tokens: int) -> None:
        """Assert that these are the rows of ``n_tokens`` tokens."""
        assert self.first >= 1, "the first token has no row"
        assert self.kv.length == self.n_rows(n_tokens), "the head's rows stand at another length"
        assert self.kv.length <= self.kv.capacity, "more rows than the buffer holds"


class State:
    """The live state of one sequence. Not shared: one owner continues it.

    Attributes:
        kv: one per full-attention layer, in layer order.
        recurrent: one per GDN layer, in layer order.
        position: tokens the recurrent states stand for.
        mtp: what the head remembers; None for a model without one.
    """

    def __init__(
        self, kv: list[KvRows], recurrent: list[Recurrent], position: int, mtp: MtpRows | None = None
    ) -> None:
        self.kv = kv
        self.recurrent = recurrent
        self.position = position
        self.mtp = mtp

    @classmethod
    def empty(cls, config: ModelConfig, layout: KvLayout, *, has_mtp: bool = False) -> State:
        """The state before any token."""
        window = mx.zeros((1, config.conv_kernel - 1, config.conv_dim), layout.dtype)
        matrix = mx.zeros((1, config.n_value_heads, config.value_head_dim, config.key_head_dim), mx.float32)
        n_recurrent = config.n_layers - config.n_full_attention_layers
        kv = [KvRows.empty(layout) for _ in range(config.n_full_attention_layers)]
        mtp = MtpRows(KvRows.empty(layout), config.hidden_size) if has_mtp else None
        return cls(kv, [Recurrent(window, matrix)] * n_recurrent, 0, mtp)

    def another(self) -> State:
        """A second state before any token, of one that is such itself."""
        assert not self.length
        mtp = None if self.mtp is None else MtpRows(KvRows.empty(self.mtp.kv.layout), self.mtp.width)
        return State([KvRows.empty(rows.layout) for rows in self.kv], list(self.recurrent), 0, mtp)

    @property
    def length(self) -> int:
        """Tokens the KV rows stand for; the same as :attr:`position` except after :meth:`truncate`."""
        return self.kv[0].length if self.kv else self.position

    @property
    def n_bytes(self) -> int:
        of_head = 0 if self.mtp is None else self.mtp.n_bytes
        of_layers = sum(rows.n_bytes for rows in self.kv) + sum(layer.n_bytes for layer in self.recurrent)
        return of_layers + of_head

    @property
    def arrays(self) -> Iterator[mx.array]:
        """Everything to evaluate for the state to stand on its own."""
        for rows in self.all_kv:
            yield from rows.arrays
        yield from self.snapshot().arrays

    @property
    def all_kv(self) -> Iterator[KvRows]:
        """The rows of all layers, the head's among them."""
        yield from self.kv
        if self.mtp is not None:
            yield self.mtp.kv

    def truncate(self, n_tokens: int) -> None:
        """Forget the KV rows from ``n_tokens`` on; only :meth:`restore` brings the rest along."""
        for rows in self.kv:
            rows.truncate(n_tokens)
        if self.mtp is not None:
            self.mtp.kv.truncate(min(self.mtp.kv.length, self.mtp.n_rows(n_tokens)))

    def shrink(self) -> None:
        """Give back the memory of rows that were cut, a layer at a time."""
        for i, rows in enumerate(self.kv):
            if capacity_for(rows.length) < rows.capacity:
                self.kv[i] = rows.copy(rows.length)
                mx.eval(*self.kv[i].arrays)
        if self.mtp is not None:
            self.mtp.shrink()

    def advance(self, end: Checkpoint) -> None:
        """Bring everything to ``end``, which the rows reach already."""
        self.recurrent = list(end.layers)
        self.position = end.length
        if self.mtp is not None:
            self.mtp.hidden = end.hidden

    def snapshot(self) -> Checkpoint:
        """The recurrent states here. Arrays are values, so this copies nothing."""
        assert self.length == self.position, "a state that was cut cannot be a checkpoint"
        return Checkpoint(self.position, tuple(self.recurrent), None if self.mtp is None else self.mtp.hidden)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to ``checkpoint``, taken on this state or on the one it was forked from."""
        assert checkpoint.length <= self.length, "the rows up to the checkpoint are gone"
        self.truncate(checkpoint.length)
        self.recurrent = list(checkpoint.layers)
        self.position = checkpoint.length
        if self.mtp is not None:
            self.mtp.go_back(checkpoint.length, checkpoint.hidden)

    def fork(self, checkpoint: Checkpoint) -> State:
        """A new state at ``checkpoint`` that shares no buffer of KV rows with this one."""
        kv = [rows.copy(checkpoint.length) for rows in self.kv]
        layers = [Recurrent(mx.array(layer.window), mx.array(layer.matrix)) for layer in checkpoint.layers]
        mtp = None if self.mtp is None else self.mtp.copy(checkpoint.length, checkpoint.hidden)
        forked = State(kv, layers, checkpoint.length, mtp)
        mx.eval(*forked.arrays)
        return forked

    def check(self) -> None:
        """Assert that every layer stands at :attr:`length` (invariant 1)."""
        assert all(rows.length == self.length for rows in self.kv), "KV layers stand at different lengths"
        assert self.position == self.length, "recurrent state and KV rows stand at different positions"
        assert all(rows.length <= rows.capacity for rows in self.kv), "more rows than the buffer holds"
        if self.mtp is not None:
            self.mtp.check(self.length)
