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
from model.kv import KvRows
from model.layers.attention import Attention, StepGroup, batch_order
from model.layers.ops import Ops


class Heads(NamedTuple):
    """One token of each of B sequences on its way to the rows.

    Attributes:
        joined: [B, width] of the input projections, for the gates.
        q: [B, Hq, 1, D]; k, v: [B, Hkv, 1, D]; normed and turned to their positions.
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
        if is_needed(self._shape.head_dim, q.dtype):
            rows.push(k, v)
            out = attend_causal(q, *rows.reserved(ALIGNMENT), rows.length, self._scale)
        else:
            keys, values = rows.append(k, v)
            out = self._ops.attend(q, keys, values, self._scale, "causal" if x.shape[1] > 1 else None)
        n_heads, dim = self._shape.n_heads, self._shape.head_dim
        gate = joined[..., : 2 * n_heads * dim].reshape(*x.shape[:2], n_heads, 2, dim)[..., 1, :]
        return self._mix(out.transpose(0, 2, 1, 3), gate)

    def step(self, x: mx.array, groups: Sequence[StepGroup], layer: int) -> mx.array:
        heads = self.begin_step(self.inputs.joined(x)[:, 0], positions_of(groups))
        return self._ops.apply(self.output, self.mix_step(heads, groups, layer)[:, None])

    def begin_step(self, joined: mx.array, positions: mx.array) -> Heads:
        """One token of each of B sequences, [B, width] of the projections, before it meets the rows;
        positions [B]."""
        return Heads(joined, *prepare(joined, positions, self._shape, self._weights, is_step=True))

    def mix_step(self, heads: Heads, groups: Sequence[StepGroup], layer: int) -> mx.array:
        """Append the rows and attend: the gated heads' outputs [B, Hq * D]."""
        if len(groups) == 1:
            return self._over_rows(heads, groups[0], layer)
        outs = [
            self._over_rows(Heads(*(side[group.members] for side in heads)), group, layer) for group in groups
        ]
        return mx.concatenate(outs)[batch_order(groups)]

    def _over_rows(self, heads: Heads, group: StepGroup, layer: int) -> mx.array:
        rows = group.kv[layer]
        rows.push(heads.k, heads.v)
        return decode(
            heads.q, *rows.reserved(), rows.length, heads.joined, group.padding, self._shape, self._weights
        )


def positions_of(groups: Sequence[StepGroup]) -> mx.array:
    """The positions of all sequences of a step, [B] int32, in the batch's order."""
    if len(groups) == 1:
        return groups[0].positions
    return mx.concatenate([group.positions for group in groups])[batch_order(groups)]


def _shape_of(block: nn.Module, config: ModelConfig) -> AttentionShape:
    n_heads, n_kv_heads = config.n_heads, config.n_kv_heads
    return AttentionShape(n_heads, n_kv_heads, config.head_dim, block.rope.dims, block.q_norm.eps)
