"""The feed-forward half of a layer: SwiGLU, or mlx-lm's mixture of experts."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from model.layers.ops import Ops
from model.layers.projection import Projection


class Mlp:
    """A SwiGLU block: a dense layer's, or an expert that every token passes.

    Reads weights from ``block``, mlx-lm's.

    Attributes:
        inputs: the gate and up projections.
        output: the one down.
    """

    def __init__(self, block: nn.Module, ops: Ops) -> None:
        self.inputs = Projection(block, ["gate_proj", "up_proj"], ops.apply)
        self.output = block.down_proj
        self._ops = ops

    def __call__(self, x: mx.array) -> mx.array:
        """[..., H] to [..., H]."""
        return self._ops.apply(self.output, self._ops.swiglu(self.inputs, x))


class FeedForward:
    """Reads weights from ``block``, mlx-lm's dense MLP or its sparse mixture of experts.

    Attributes:
        mlp: of a dense layer; None where experts are mixed.
    """

    def __init__(self, block: nn.Module, ops: Ops) -> None:
        self._block = block
        self.mlp = Mlp(block, ops) if "gate_proj" in block else None

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] to [B, T, H]."""
        out: mx.array = (self.mlp or self._block)(x)
        return out
