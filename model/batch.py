"""The sequences that decode together: one read of the weights a step, for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from model.kv import KvRows, merge
from model.softmax_attention import Mask
from model.state import Checkpoint, Recurrent, State

Step = Callable[[mx.array, Sequence[KvRows], list[Recurrent], int | mx.array, Mask], mx.array]


class DecodeBatch:
    """Owns the states of its members from :meth:`join` to :meth:`leave`.

    Members stand in one padded buffer per layer, their rows flush to the right, so that a step writes
    one column for all. Joins and leaves are only noted; the buffers are rebuilt at the next step. A
    lone member keeps the buffers it came with.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._keys: list[int] = []
        self._lengths: list[int] = []
        self._kv: list[KvRows] = []
        self._recurrent: list[Recurrent] = []
        # Rows of the buffers that belong to self._keys[: len(self._live)], in order.
        self._live: list[int] = []
        self._joined: list[State] = []
        self._n_rows = 0

    @property
    def keys(self) -> tuple[int, ...]:
        """The members, in the order of the rows of a step."""
        return tuple(self._keys)

    @property
    def n_bytes(self) -> int:
        """Bytes held for the members, padding included."""
        held = sum(rows.n_bytes for rows in self._kv) + sum(layer.n_bytes for layer in self._recurrent)
        return held + sum(state.n_bytes for state in self._joined)

    def n_bytes_of(self, key: int) -> int:
        """The member's part of :attr:`n_bytes`; the parts add up to the whole."""
        at = self._keys.index(key)
        if at >= len(self._live):
            return self._joined[at - len(self._live)].n_bytes
        merged = self.n_bytes - sum(state.n_bytes for state in self._joined)
        share, rest = divmod(merged, len(self._live))
        return share + (rest if at == 0 else 0)

    def length(self, key: int) -> int:
        """Tokens fed to member ``key``."""
        return self._lengths[self._keys.index(key)]

    def join(self, key: int, state: State) -> None:
        """Take ``state`` over as member ``key``, last in order."""
        assert key not in self._keys
        state.check()
        self._keys.append(key)
        self._lengths.append(state.length)
        self._joined.append(state)

    def leave(self, key: int) -> State:
        """Give member ``key`` back as a state that stands alone, evaluated."""
        at = self._keys.index(key)
        if at >= len(self._live):
            state = self._joined.pop(at - len(self._live))
        else:
            state = self._extract(at)
            self._live.pop(at)
            if not self._live:
                self._kv, self._recurrent, self._n_rows = [], [], 0
        self._keys.pop(at)
        self._lengths.pop(at)
        mx.eval(*state.arrays)
        return state

    def snapshot(self, key: int) -> Checkpoint:
        """The recurrent states of member ``key`` now, evaluated, in buffers of their own."""
        at = self._keys.index(key)
        if at >= len(self._live):
            return self._joined[at - len(self._live)].snapshot()
        checkpoint = Checkpoint(self._lengths[at], tuple(self._recurrent_row(self._live[at])))
        mx.eval(*checkpoint.arrays)
        return checkpoint

    def fork(self, key: int, checkpoint: Checkpoint) -> State:
        """A state of its own at ``checkpoint``, taken on member ``key``, which goes on undisturbed."""
        at = self._keys.index(key)
        if at >= len(self._live):
            return self._joined[at - len(self._live)].fork(checkpoint)
        row, length = self._live[at], self._lengths[at]
        kv = [rows.row(row, length).copy(checkpoint.length) for rows in self._kv]
        forked = State(kv, list(checkpoint.layers), checkpoint.length)
        mx.eval(*forked.arrays)
        return forked

    def step(self, tokens: mx.array) -> mx.array:
        """Feed one token to every member.

        Args:
            tokens: [B] ids in the order of :attr:`keys`; may be lazy.

        Returns:
            Logits [B, V], float32, lazy.
        """
        assert tokens.shape == (len(self._keys),)
        self._settle()
        offset, mask = self._positions()
        logits = self._step(tokens, self._kv, self._recurrent, offset, mask)
        self._lengths = [n + 1 for n in self._lengths]
        return logits

    def _positions(self) -> tuple[int | mx.array, Mask]:
        """Each member's position, and which columns of the buffers it may see after this step."""
        if len(set(self._lengths)) == 1:
            return self._lengths[0], None
        n_columns = max(self._lengths) + 1
        lengths = mx.array(self._lengths)
        first = n_columns - 1 - lengths  # the padding is on the left
        mask = mx.arange(n_columns)[None, :] >= first[:, None]
        return lengths, mask[:, None, None, :]

    def _settle(self) -> None:
        """Bring the buffers in line with the membership."""
        if not self._joined and len(self._live) == self._n_rows:
            return
        states = [self._extract(at) for at in range(len(self._live))] + self._joined
        self._joined = []
        self._kv = [merge(layer) for layer in zip(*(state.kv for state in states), strict=True)]
        self._recurrent = [
            _stack(layer) for layer in zip(*(state.recurrent for state in states), strict=True)
        ]
        self._n_rows = len(states)
        self._live = list(range(len(states)))

    def _extract(self, at: int) -> State:
        """Member ``at`` on its own; alone it keeps the buffers, else they are copied."""
        row, length = self._live[at], self._lengths[at]
        if self._n_rows == 1:
            return State(self._kv, self._recurrent, length)
        return State([rows.row(row, length) for rows in self._kv], self._recurrent_row(row), length)

    def _recurrent_row(self, row: int) -> list[Recurrent]:
        rows = (
            Recurrent(layer.window[row : row + 1], layer.matrix[row : row + 1]) for layer in self._recurrent
        )
        return [layer.detached() for layer in rows]


def _stack(layers: Sequence[Recurrent]) -> Recurrent:
    if len(layers) == 1:
        return layers[0]
    return Recurrent(
        mx.concatenate([layer.window for layer in layers]), mx.concatenate([layer.matrix for layer in layers])
    )
