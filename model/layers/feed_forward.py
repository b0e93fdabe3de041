"""The feed-forward half of a layer: SwiGLU of our own for dense models, mlx-lm's block for experts."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from model.device import Device
from model.layers.projection import Projection


class FeedForward:
    """Reads weights from ``block``, mlx-lm's dense MLP or its sparse mixture of experts."""

    def __init__(self, block: nn.Module, device: Device) -> None:
        self._block = block
        self._swiglu = device.swiglu
        self._apply = device.apply
        self._is_dense = "gate_proj" in block
        if self._is_dense:
            self._inputs = Projection(block, ["gate_proj", "up_proj"], device.apply)

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] to [B, T, H]."""
        if not self._is_dense:
            mixed: mx.array = self._block(x)
            return mixed
        return self._apply(self._block.down_proj, self._swiglu(self._inputs, x))
