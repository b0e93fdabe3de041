"""The feed-forward half of a layer: SwiGLU of our own for dense models, mlx-lm's block for experts."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from model.elementwise import Elementwise
from model.projection import Projection


class FeedForward:
    """Reads weights from ``block``, mlx-lm's dense MLP or its sparse mixture of experts."""

    def __init__(self, block: nn.Module, math: Elementwise) -> None:
        self._block = block
        self._math = math
        self._is_dense = "gate_proj" in block
        if self._is_dense:
            self._inputs = Projection(block, ["gate_proj", "up_proj"])

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] to [B, T, H]."""
        if not self._is_dense:
            mixed: mx.array = self._block(x)
            return mixed
        gate, up = self._inputs(x)
        out: mx.array = self._block.down_proj(self._math.silu(gate) * up)
        return out
