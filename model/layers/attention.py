"""One full-attention layer: gated output, q and k norms, partial rotary positions, grouped queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.layers.ops import Mask, Ops, Projection
from model.layers.ragged import Ragged
from model.state import KvRows

FEW_QUERIES = 8
"""Of a sequence: more of them are worth the unpacking of packed rows."""


@dataclass(frozen=True)
class StepGroup:
    """Sequences of a batch that stand in common, left-padded buffers.

    Attributes:
        members: [b] rows of the batch that are these sequences, in the buffers' order.
        kv: one for each full-attention layer; they grow by the step.
        n_columns: columns in use before the step.
        padding: [b] int32, columns on the left that are none of a sequence's; None if there are none.
    """

    members: mx.array
    kv: Sequence[KvRows]
    n_columns: int
    padding: mx.array | None
    _masks: dict[int, mx.array] = field(default_factory=dict)

    @cached_property
    def offset(self) -> int | mx.array:
        """The sequences' positions, one for all or [b]."""
        return self.n_columns if self.padding is None else self.n_columns - self.padding

    @cached_property
    def positions(self) -> mx.array:
        """The sequences' positions, [b] int32."""
        offset = self.offset
        return offset if isinstance(offset, mx.array) else mx.array([offset] * self.members.size, mx.int32)

    def mask(self, n_tokens: int) -> Mask:
        """What each of ``n_tokens`` new tokens sees: [b, 1, T, length] after the step, True where a column is
        a sequence's own and not in the token's future."""
        if self.padding is None:
            return "causal" if n_tokens > 1 else None
        if n_tokens not in self._masks:
            columns = mx.arange(self.n_columns + n_tokens)
            own = (columns >= self.padding[:, None])[:, None, None, :]
            past = columns <= mx.arange(self.n_columns, self.n_columns + n_tokens)[:, None]
            self._masks[n_tokens] = own if n_tokens == 1 else own & past
        return self._masks[n_tokens]


def batch_order(groups: Sequence[StepGroup]) -> mx.array:
    """Where each sequence of the batch stands when the groups are laid end to end, [B]."""
    return mx.argsort(mx.concatenate([group.members for group in groups]))


class Attention:
    """Reads weights from ``block`` (mlx-lm's modules); the rows live with the caller."""

    def __init__(self, block: nn.Module, config: ModelConfig, ops: Ops) -> None:
        self._block = block
        self._ops = ops
        self._inputs = Projection(block, ["q_proj", "k_proj", "v_proj"], ops.apply)
        self._rows_inputs: Callable[[mx.array], list[mx.array]] | None = None  # of keys and values alone
        self._n_heads = config.n_heads
        self._n_kv_heads = config.n_kv_heads
        self._scale = config.head_dim**-0.5

    def prefill(self, x: mx.array, rows: KvRows) -> mx.array:
        """Append T tokens [1, T, H] to one sequence and attend over everything; returns [1, T, H]."""
        q, k, v, gate = self._project(x)
        mask: Mask = "causal" if x.shape[1] > 1 else None
        return self._mix(self._over(q, k, v, rows, rows.length, mask), gate)

    def prefill_ragged(self, x: mx.array, rows: Sequence[KvRows], ragged: Ragged) -> mx.array:
        """Append the tokens of several sequences, laid end to end in x [1, N, H], each to its own of
        ``rows``, and attend over those; returns [1, N, H]."""
        q, k, v, gate = self._project(x)
        outs = []
        for own, span in zip(rows, ragged.spans, strict=True):
            mask: Mask = "causal" if span.stop - span.start > 1 else None
            outs.append(self._over(q[:, span], k[:, span], v[:, span], own, own.length, mask))
        return self._mix(mx.concatenate(outs, axis=1), gate)

    def step(self, x: mx.array, groups: Sequence[StepGroup], layer: int) -> mx.array:
        """Append T tokens to each of B sequences and attend over everything.

        Args:
            x: [B, T, H].
            groups: the sequences that share padded buffers; together they are all B.
            layer: which of the groups' rows belong to this layer.

        Returns:
            [B, T, H].
        """
        q, k, v, gate = self._project(x)
        n_tokens = x.shape[1]
        if len(groups) == 1:
            group = groups[0]
            return self._mix(self._over(q, k, v, group.kv[layer], group.offset, group.mask(n_tokens)), gate)
        outs = []
        for group in groups:
            at = group.members
            mask = group.mask(n_tokens)
            outs.append(self._over(q[at], k[at], v[at], group.kv[layer], group.offset, mask))
        return self._mix(mx.concatenate(outs)[batch_order(groups)], gate)

    def keys_values(self, x: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array]:
        """What the layer would append for T tokens of each of B sequences, without looking at anything.

        Args:
            x: [B, T, H].
            offset: positions of the first tokens, one for all or [B].

        Returns:
            Keys, turned to their positions, and values, [B, Hkv, T, D].
        """
        if self._rows_inputs is None:
            self._rows_inputs = self._inputs.behind(1)
        n_seqs, n_tokens, _ = x.shape
        k, v = (
            side.reshape(n_seqs, n_tokens, self._n_kv_heads, -1).transpose(0, 2, 1, 3)
            for side in self._rows_inputs(x)
        )
        return self._block.rope(self._block.k_norm(k), offset=offset), v

    def _project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Normed q [B, T, Hq, D] and k, v [B, T, Hkv, D], before positions; and the output's gate."""
        return self._heads(*self._inputs(x))

    def _heads(self, q: mx.array, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """The same of the projections' outputs, [B, T, width] each."""
        n_seqs, n_tokens, _ = q.shape
        q, gate = mx.split(q.reshape(n_seqs, n_tokens, self._n_heads, -1), 2, axis=-1)
        k, v = (side.reshape(n_seqs, n_tokens, self._n_kv_heads, -1) for side in (k, v))
        return self._block.q_norm(q), self._block.k_norm(k), v, gate

    def _over(
        self, q: mx.array, k: mx.array, v: mx.array, rows: KvRows, offset: int | mx.array, mask: Mask
    ) -> mx.array:
        """Turn q and k to their positions, append, attend: [B, T, Hq, D]."""
        attend_packed = self._ops.attend_packed if rows.layout.bits and q.shape[1] <= FEW_QUERIES else None
        if attend_packed is not None:
            q, k, v = (side.transpose(0, 2, 1, 3) for side in (q, k, v))
            rows.push(self._block.rope(k, offset=offset), v)
            out = attend_packed(self._block.rope(q, offset=offset), rows, self._scale, mask)
        else:
            q, keys, values = self._append(q, k, v, rows, offset)
            out = self._ops.attend(q, keys, values, self._scale, mask)
        return out.transpose(0, 2, 1, 3)

    def _append(
        self, q: mx.array, k: mx.array, v: mx.array, rows: KvRows, offset: int | mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Turn q and k to their positions and append: q [B, Hq, T, D], all keys and values [B, Hkv, S, D]."""
        q, k, v = (side.transpose(0, 2, 1, 3) for side in (q, k, v))
        keys, values = rows.append(self._block.rope(k, offset=offset), v)
        return self._block.rope(q, offset=offset), keys, values

    def _mix(self, out: mx.array, gate: mx.array) -> mx.array:
        """Gate the heads' outputs [B, T, Hq, D] and project them to [B, T, H]."""
        gated = (out * self._ops.sigmoid(gate)).reshape(*out.shape[:2], -1)
        return self._ops.apply(self._block.o_proj, gated)


def query_blocks(n_queries: int, n_keys: int, n_rows: int) -> Iterator[tuple[slice, int]]:
    """Runs of ``n_rows`` of the last queries of a sequence, and for each how many of the keys its last query
    sees."""
    for start in range(0, n_queries, n_rows):
        end = min(start + n_rows, n_queries)
        yield slice(start, end), n_keys - n_queries + end
