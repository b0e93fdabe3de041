"""A full-attention layer on the CPU in NumPy: prompts on all cores, and steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from model.checkpoint.config import ModelConfig
from model.device import Device
from model.devices.cpu.norm import RmsNorm
from model.devices.cpu.products import (
    MANY_ROWS,
    Array,
    can_multiply,
    is_plain,
    matrix,
    multiply,
    one_plus_exp_minus,
    step_multiply,
)
from model.devices.cpu.softmax import attend, attend_one
from model.kv import KvRows
from model.layers.attention import Attention, StepGroup


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the sequences of a group stand in a step, for all layers.

    Attributes:
        members: [b], rows of the batch.
        padding: [b], columns on the left that are none of a sequence's.
        cos, sin: of the rotary angles, [b, 1, dims / 2].
    """

    members: NDArray[np.int32]
    padding: NDArray[np.int32]
    cos: Array
    sin: Array


class CpuAttention(Attention):
    """See :class:`Attention`, which takes short prompts and layers of other kinds (LoRA).

    Attributes:
        steps_in_numpy: whether :meth:`step_rows` may be called.
    """

    def __init__(self, block: nn.Module, config: ModelConfig, device: Device) -> None:
        super().__init__(block, config, device)
        self._crew = device.crew
        self._can_multiply = can_multiply(*self._inputs.layers, block.o_proj)
        # mlx-lm's plain rotary positions: neither interleaved nor stretched by a table.
        turns_plainly = type(block.rope) is nn.RoPE and not block.rope.traditional
        self.steps_in_numpy = turns_plainly and all(map(is_plain, (*self._inputs.layers, block.o_proj)))
        if self.steps_in_numpy:
            self._step_inputs = [matrix(layer) for layer in self._inputs.layers]
            self._step_output = matrix(block.o_proj)
            self._q_norm, self._k_norm = RmsNorm(block.q_norm), RmsNorm(block.k_norm)
            half = block.rope.dims // 2
            # As MLX's CPU backend computes them, to the last bit.
            rates = mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(block.rope.base) / half))
            self._rates = np.asarray(rates) * np.float32(block.rope.scale)

    def prefill(self, x: mx.array, rows: KvRows) -> mx.array:
        if x.shape[1] < MANY_ROWS or not self._can_multiply:
            return super().prefill(x, rows)
        inputs = np.asarray(x)[0]
        outputs = [multiply(inputs, matrix(layer), self._crew) for layer in self._inputs.layers]
        q, k, v, gate = self._heads(*(mx.array(part)[None] for part in self._inputs.split(outputs)))
        q, keys, values = self._append(q, k, v, rows, rows.length)
        # Evaluated together: the queries need no more of MLX.
        mx.eval(q, keys, values, gate)
        q, keys, values, closing = (np.asarray(side)[0] for side in (q, keys, values, gate))
        mixed = attend(q, keys, values, self._scale, self._crew)
        mixed /= one_plus_exp_minus(closing.reshape(mixed.shape), np.empty_like(mixed))
        return mx.array(multiply(mixed, matrix(self._block.o_proj), self._crew))[None]

    def standing(self, group: StepGroup) -> Standing:
        """Where ``group`` stands; the same for every layer."""
        members = np.asarray(group.members)
        padding = np.zeros(len(members), np.int32) if group.padding is None else np.asarray(group.padding)
        angles = (group.n_columns - padding).astype(np.float32)[:, None, None] * self._rates
        return Standing(members, padding, np.cos(angles), np.sin(angles))

    def step_rows(
        self, x: Array, groups: Sequence[StepGroup], standings: Sequence[Standing], layer: int
    ) -> Array:
        """:meth:`step` of rows [B, H]; ``standings`` are those of ``groups``."""
        n_seqs = len(x)
        q, k, v = self._inputs.split([step_multiply(x, w, self._crew) for w in self._step_inputs])
        q = q.reshape(n_seqs, self._n_heads, -1)
        dim = q.shape[-1] // 2
        closing = np.ascontiguousarray(q[..., dim:])
        q, k, v = (
            self._q_norm(q[..., :dim]),
            self._k_norm(k.reshape(n_seqs, -1, dim)),
            v.reshape(n_seqs, -1, dim),
        )
        q *= np.float32(self._scale)
        mixed = np.empty((n_seqs, self._n_heads, dim), np.float32)
        for group, standing in zip(groups, standings, strict=True):
            at = standing.members if len(groups) > 1 else slice(None)
            turned, keys = _turned(q[at], standing), _turned(k[at], standing)
            all_keys, all_values = group.kv[layer].write(keys, v[at])
            mixed[at] = attend_one(turned, all_keys, all_values, standing.padding, self._crew)
        mixed /= one_plus_exp_minus(closing, closing)
        return step_multiply(mixed.reshape(n_seqs, -1), self._step_output, self._crew)


def _turned(x: Array, standing: Standing) -> Array:
    """[b, heads, D] with its first dimensions turned to the sequences' positions."""
    half = standing.cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = x.copy()
    turned[..., :half] = first * standing.cos - second * standing.sin
    turned[..., half : 2 * half] = first * standing.sin + second * standing.cos
    return turned
