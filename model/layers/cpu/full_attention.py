"""A full-attention layer on the CPU: prompts in NumPy on all cores, steps as they are everywhere."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from model.checkpoint.config import ModelConfig
from model.device import Device
from model.kv import KvRows
from model.layers.attention import Attention
from model.layers.cpu.products import MANY_ROWS, can_multiply, matrix, multiply, one_plus_exp_minus
from model.layers.cpu.softmax import attend


class CpuAttention(Attention):
    """See :class:`Attention`, which takes short prompts and layers of other kinds (LoRA)."""

    def __init__(self, block: nn.Module, config: ModelConfig, device: Device) -> None:
        super().__init__(block, config, device)
        self._crew = device.crew
        self._can_multiply = can_multiply(*self._inputs.layers, block.o_proj)

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
