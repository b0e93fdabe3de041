"""All that a model remembers of one sequence: KV rows that can be cut, recurrent states that cannot.

Structurally these are ``SequenceState`` and ``Checkpoint`` of ``cache/state.py``; neither side imports
the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from model.checkpoint.config import ModelConfig
from model.kv import KvLayout, KvRows, capacity_for


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
    """The recurrent states after exactly ``length`` tokens. Arrays are values: nothing changes them."""

    length: int
    layers: tuple[Recurrent, ...]

    @property
    def n_bytes(self) -> int:
        return sum(layer.n_bytes for layer in self.layers)

    @property
    def arrays(self) -> Iterator[mx.array]:
        for layer in self.layers:
            yield layer.window
            yield layer.matrix


class State:
    """The live state of one sequence. Not shared: one owner continues it.

    Attributes:
        kv: one per full-attention layer, in layer order.
        recurrent: one per GDN layer, in layer order.
        position: tokens the recurrent states stand for.
    """

    def __init__(self, kv: list[KvRows], recurrent: list[Recurrent], position: int) -> None:
        self.kv = kv
        self.recurrent = recurrent
        self.position = position

    @classmethod
    def empty(cls, config: ModelConfig, layout: KvLayout) -> State:
        """The state before any token."""
        window = mx.zeros((1, config.conv_kernel - 1, config.conv_dim), layout.dtype)
        matrix = mx.zeros((1, config.n_value_heads, config.value_head_dim, config.key_head_dim), mx.float32)
        n_recurrent = config.n_layers - config.n_full_attention_layers
        kv = [KvRows.empty(layout) for _ in range(config.n_full_attention_layers)]
        return cls(kv, [Recurrent(window, matrix)] * n_recurrent, 0)

    @property
    def length(self) -> int:
        """Tokens the KV rows stand for; the same as :attr:`position` except after :meth:`truncate`."""
        return self.kv[0].length if self.kv else self.position

    @property
    def n_bytes(self) -> int:
        return sum(rows.n_bytes for rows in self.kv) + sum(layer.n_bytes for layer in self.recurrent)

    @property
    def arrays(self) -> Iterator[mx.array]:
        """Everything to evaluate for the state to stand on its own."""
        for rows in self.kv:
            yield from rows.arrays
        yield from self.snapshot().arrays

    def truncate(self, n_tokens: int) -> None:
        """Forget the KV rows from ``n_tokens`` on; only :meth:`restore` brings the rest along."""
        for rows in self.kv:
            rows.truncate(n_tokens)

    def shrink(self) -> None:
        """Give back the memory of rows that were cut, a layer at a time."""
        for i, rows in enumerate(self.kv):
            if capacity_for(rows.length) < rows.capacity:
                self.kv[i] = rows.copy(rows.length)
                mx.eval(*self.kv[i].arrays)

    def snapshot(self) -> Checkpoint:
        """The recurrent states here. Arrays are values, so this copies nothing."""
        assert self.length == self.position, "a state that was cut cannot be a checkpoint"
        return Checkpoint(self.position, tuple(self.recurrent))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to ``checkpoint``, taken on this state or on the one it was forked from."""
        assert checkpoint.length <= self.length, "the rows up to the checkpoint are gone"
        self.truncate(checkpoint.length)
        self.recurrent = list(checkpoint.layers)
        self.position = checkpoint.length

    def fork(self, checkpoint: Checkpoint) -> State:
        """A new state at ``checkpoint`` that shares no buffer of KV rows with this one."""
        kv = [rows.copy(checkpoint.length) for rows in self.kv]
        layers = [Recurrent(mx.array(layer.window), mx.array(layer.matrix)) for layer in checkpoint.layers]
        forked = State(kv, layers, checkpoint.length)
        mx.eval(*forked.arrays)
        return forked

    def check(self) -> None:
        """Assert that every layer stands at :attr:`length` (invariant 1)."""
        assert all(rows.length == self.length for rows in self.kv), "KV layers stand at different lengths"
        assert self.position == self.length, "recurrent state and KV rows stand at different positions"
        assert all(rows.length <= rows.capacity for rows in self.kv), "more rows than the buffer holds"
