"""A full-attention layer on CUDA: kernels around its projections, and blocks of queries for wide heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.devices.cuda.kernels.attention_prompt import ALIGNMENT, attend_causal, is_needed
from model.devices.cuda.kernels.attention_step import (
    AttentionShape,
    AttentionWeights,
    can_attend,
    decode,
    prepare,
)
from model.layers.attention import Attention, StepGroup, batch_order
from model.layers.ops import Ops
from model.layers.ragged import Ragged
from model.state import KvRows

_READ_ANEW = 8  # tokens of a sequence up to which each reads all rows by itself


class Heads(NamedTuple):
    """T tokens of each of B sequences on their way to the rows.

    Attributes:
        joined: [B * T, width] of the input projections, for the gates.
        q: [B * T, Hq, 1, D]; k, v: [B * T, Hkv, 1, D]; normed and turned to their positions.
    """

    joined: mx.array
    q: mx.array
    k: mx.array
    v: mx.array


class CudaAttention(Attention):
    """See :class:`Attention`.

    Attributes:
        inputs, output: the projections around the kernels.
    """

    def __init__(self, block: nn.Module, config: ModelConfig, ops: Ops) -> None:
        super().__init__(block, config, ops)
        self.inputs, self.output = self._inputs, block.o_proj
        self._shape = _shape_of(block, config)
        half = self._shape.n_rotated // 2
        frequencies = block.rope.base ** (-mx.arange(half, dtype=mx.float32) / half)
        self._weights = AttentionWeights(
            q_norm=block.q_norm.weight,
            k_norm=block.k_norm.weight,
            frequencies=frequencies * block.rope.scale,
        )
        mx.eval(*self._weights)  # or a compiled step would compute them anew each time

    @staticmethod
    def takes(block: nn.Module, config: ModelConfig) -> bool:
        """Whether the kernels take the model's heads and positions."""
        rope = block.rope
        is_plain = type(rope) is nn.RoPE and not rope.traditional and rope.dims % 2 == 0
        return is_plain and can_attend(_shape_of(block, config), block.q_norm.weight.dtype)

    def prefill(self, x: mx.array, rows: KvRows) -> mx.array:
        joined = self.inputs.joined(x)
        positions = mx.arange(rows.length, rows.length + x.shape[1], dtype=mx.int32)
        q, k, v = prepare(joined.squeeze(0), positions, self._shape, self._weights, is_step=False)
        return self._close(joined, self._attend_prompt(q, k, v, rows))

    def prefill_ragged(self, x: mx.array, rows: Sequence[KvRows], ragged: Ragged) -> mx.array:
        joined = self.inputs.joined(x)
        q, k, v = prepare(joined.squeeze(0), ragged.positions, self._shape, self._weights, is_step=False)
        outs = [
            self._attend_prompt(q[:, :, span], k[:, :, span], v[:, :, span], own)
            for own, span in zip(rows, ragged.spans, strict=True)
        ]
        return self._close(joined, mx.concatenate(outs, axis=2))

    def _attend_prompt(self, q: mx.array, k: mx.array, v: mx.array, rows: KvRows) -> mx.array:
        """Append T tokens of one sequence, [1, H, T, D], and attend over everything: [1, Hq, T, D]."""
        if is_needed(self._shape.head_dim, q.dtype):
            rows.push(k, v)
            return attend_causal(q, *rows.reserved(ALIGNMENT), rows.length, self._scale)
        keys, values = rows.append(k, v)
        return self._ops.attend(q, keys, values, self._scale, "causal" if q.shape[2] > 1 else None)

    def _close(self, joined: mx.array, out: mx.array) -> mx.array:
        """Gate the heads' outputs [1, Hq, T, D] and project them to [1, T, H]."""
        n_heads, dim = self._shape.n_heads, self._shape.head_dim
        gate = joined[..., : 2 * n_heads * dim].reshape(*joined.shape[:2], n_heads, 2, dim)[..., 1, :]
        return self._mix(out.transpose(0, 2, 1, 3), gate)

    def step(self, x: mx.array, groups: Sequence[StepGroup], layer: int) -> mx.array:
        n_seqs, n_tokens, _ = x.shape
        joined = self.inputs.joined(x).reshape(n_seqs * n_tokens, -1)
        heads = self.begin_step(joined, positions_of(groups, n_tokens))
        mixed = self.mix_step(heads, groups, layer, n_tokens)
        return self._ops.apply(self.output, mixed.reshape(n_seqs, n_tokens, -1))

    def begin_step(self, joined: mx.array, positions: mx.array) -> Heads:
        """T tokens of each of B sequences, [B * T, width] of the projections, before they meet the rows;
        positions [B * T]."""
        return Heads(joined, *prepare(joined, positions, self._shape, self._weights, is_step=True))

    def mix_step(self, heads: Heads, groups: Sequence[StepGroup], layer: int, n_tokens: int = 1) -> mx.array:
        """Append the rows of T tokens of each sequence and attend: the gated outputs [B * T, Hq * D]."""
        if len(groups) == 1:
            return self._over_rows(heads, groups[0], layer, n_tokens)
        outs = []
        for group in groups:
            rows = _rows_of(group.members, n_tokens)
            own = Heads(*(side[rows] for side in heads))
            outs.append(self._over_rows(own, group, layer, n_tokens))
        return mx.concatenate(outs)[_rows_of(batch_order(groups), n_tokens)]

    def _over_rows(self, heads: Heads, group: StepGroup, layer: int, n_tokens: int) -> mx.array:
        rows = group.kv[layer]
        if n_tokens == 1:
            rows.push(heads.k, heads.v)
        else:
            rows.push(*(_by_sequence(side, n_tokens) for side in (heads.k, heads.v)))
        if n_tokens <= _READ_ANEW or group.padding is not None:
            q, joined = heads.q, heads.joined
            return decode(q, *rows.reserved(), rows.length, joined, group.padding, self._shape, self._weights)
        return self._in_blocks(heads, rows, n_tokens)

    def _in_blocks(self, heads: Heads, rows: KvRows, n_tokens: int) -> mx.array:
        """Attention as in a prompt, which reads the rows once for all tokens of a sequence."""
        n_heads, dim = self._shape.n_heads, self._shape.head_dim
        q = _by_sequence(heads.q, n_tokens)
        keys, values = rows.reserved(ALIGNMENT)
        outs = [
            attend_causal(q[i : i + 1], keys[i : i + 1], values[i : i + 1], rows.length, self._scale)
            for i in range(q.shape[0])
        ]
        mixed = (mx.concatenate(outs) if len(outs) > 1 else outs[0]).transpose(0, 2, 1, 3)
        gate = heads.joined[:, : 2 * n_heads * dim].reshape(*mixed.shape[:3], 2, dim)[..., 1, :]
        return (mixed * mx.sigmoid(gate)).reshape(-1, n_heads * dim)


def positions_of(groups: Sequence[StepGroup], n_tokens: int = 1) -> mx.array:
    """The positions of T tokens of all sequences of a step, [B * T] int32, in the batch's order."""
    if len(groups) == 1:
        first = groups[0].positions
    else:
        first = mx.concatenate([group.positions for group in groups])[batch_order(groups)]
    return first if n_tokens == 1 else (first[:, None] + mx.arange(n_tokens, dtype=mx.int32)).flatten()


def _rows_of(members: mx.array, n_tokens: int) -> mx.array:
    """Of sequences, the rows of their T tokens."""
    return members if n_tokens == 1 else (members[:, None] * n_tokens + mx.arange(n_tokens)).flatten()


def _by_sequence(heads: mx.array, n_tokens: int) -> mx.array:
    """[B * T, H, 1, D] to [B, H, T, D]."""
    _, n_heads, _, dim = heads.shape
    return heads.reshape(-1, n_tokens, n_heads, dim).transpose(0, 2, 1, 3)


def _shape_of(block: nn.Module, config: ModelConfig) -> AttentionShape:
    n_heads, n_kv_heads = config.n_heads, config.n_kv_heads
    return AttentionShape(n_heads, n_kv_heads, config.head_dim, block.rope.dims, block.q_norm.eps)
