"""A full-attention layer on CUDA: kernels around its projections, and blocks of queries for wide heads."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.device import Device
from model.kv import KvRows
from model.layers.attention import Attention, StepGroup
from model.layers.cuda.attention import AttentionShape, AttentionWeights, can_attend, decode, prepare
from model.layers.softmax_attention import Mask


class CudaAttention(Attention):
    """See :class:`Attention`."""

    def __init__(self, block: nn.Module, config: ModelConfig, device: Device) -> None:
        super().__init__(block, config, device)
        self._shape = _shape_of(block, config)
        half = self._shape.n_rotated // 2
        frequencies = block.rope.base ** (-mx.arange(half, dtype=mx.float32) / half)
        self._weights = AttentionWeights(
            q_norm=block.q_norm.weight,
            k_norm=block.k_norm.weight,
            eps=mx.array([block.q_norm.eps], mx.float32),
            scale=mx.array([self._scale], mx.float32),
            frequencies=frequencies * block.rope.scale,
        )

    @staticmethod
    def takes(block: nn.Module, config: ModelConfig) -> bool:
        """Whether the kernels take the model's heads and positions."""
        rope = block.rope
        is_plain = type(rope) is nn.RoPE and not rope.traditional and rope.dims % 2 == 0
        return is_plain and can_attend(_shape_of(block, config), block.q_norm.weight.dtype)

    def prefill(self, x: mx.array, rows: KvRows) -> mx.array:
        joined = self._inputs.joined(x)
        start = mx.array([rows.length], mx.int32)
        q, k, v = prepare(joined[0], start, self._shape, self._weights, is_step=False)
        keys, values = rows.append(k, v)
        mask: Mask = "causal" if x.shape[1] > 1 else None
        out = self._device.attend(q, keys, values, self._scale, mask)
        n_heads, dim = self._shape.n_heads, self._shape.head_dim
        gate = joined[..., : 2 * n_heads * dim].reshape(*x.shape[:2], n_heads, 2, dim)[..., 1, :]
        return self._mix(out.transpose(0, 2, 1, 3), gate)

    def step(self, x: mx.array, groups: Sequence[StepGroup], layer: int) -> mx.array:
        joined = self._inputs.joined(x)[:, 0]
        if len(groups) == 1:
            return self._apply_output(self._over_group(joined, groups[0], layer))
        outs = [self._over_group(joined[group.members], group, layer) for group in groups]
        order = mx.argsort(mx.concatenate([group.members for group in groups]))
        return self._apply_output(mx.concatenate(outs)[order])

    def _over_group(self, joined: mx.array, group: StepGroup, layer: int) -> mx.array:
        """[b, width] of the input projections to the gated heads' outputs [b, Hq * D]."""
        q, k, v = prepare(joined, group.positions, self._shape, self._weights, is_step=True)
        keys, values = group.kv[layer].append(k, v)
        return decode(q, keys, values, joined, group.padding, self._shape, self._weights)

    def _apply_output(self, mixed: mx.array) -> mx.array:
        return self._device.apply(self._block.o_proj, mixed[:, None])


def _shape_of(block: nn.Module, config: ModelConfig) -> AttentionShape:
    return AttentionShape(config.n_heads, config.n_kv_heads, config.head_dim, block.rope.dims)
