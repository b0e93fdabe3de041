"""The feed-forward half of a layer: SwiGLU, or a mixture of experts (on CUDA ours, elsewhere mlx-lm's)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from model.device import Device
from model.layers.mixture import Mixture
from model.layers.mlp import Mlp


class FeedForward:
    """Reads weights from ``block``, mlx-lm's dense MLP or its sparse mixture of experts.

    Attributes:
        mlp: of a dense layer.
        experts: our mixture; None too where mlx-lm's computes.
    """

    def __init__(self, block: nn.Module, device: Device) -> None:
        self._block = block
        self.mlp: Mlp | None = None
        self.experts: Mixture | None = None
        if "gate_proj" in block:
            self.mlp = Mlp(block, device)
        elif device.kind == "cuda":
            self.experts = Mixture(block, device)

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] to [B, T, H]."""
        out: mx.array = (self.mlp or self.experts or self._block)(x)
        return out
