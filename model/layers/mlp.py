"""A SwiGLU block: the feed-forward half of a dense layer, and an expert that every token passes."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from model.device import Device
from model.layers.projection import Projection


class Mlp:
    """Reads weights from ``block``, mlx-lm's.

    Attributes:
        inputs: the gate and up projections.
        output: the one down.
    """

    def __init__(self, block: nn.Module, device: Device) -> None:
        self.inputs = Projection(block, ["gate_proj", "up_proj"], device.apply)
        self.output = block.down_proj
        self._apply = device.apply
        self._swiglu = device.swiglu

    def __call__(self, x: mx.array) -> mx.array:
        """[..., H] to [..., H]."""
        return self._apply(self.output, self._swiglu(self.inputs, x))
