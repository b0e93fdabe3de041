"""The feed-forward half of a layer: SwiGLU, or a mixture of experts (on CUDA ours, elsewhere mlx-lm's)."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from model.device import Device
from model.layers.mixture import Mixture
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
        else:
            self._mixture: Callable[[mx.array], mx.array] = block
            if device.kind == "cuda":
                self._mixture = Mixture(block, device)

    @property
    def dense(self) -> tuple[Projection, nn.Module] | None:
        """The gate and up projections and the one down; None for experts."""
        return (self._inputs, self._block.down_proj) if self._is_dense else None

    def step(self, x: mx.array, residual: mx.array) -> mx.array:
        """Rows [B, H] to [B, H], ``residual`` [B, H] added to them."""
        if not self._is_dense and isinstance(self._mixture, Mixture):
            return self._mixture.step(x, residual)
        return residual + self(x[:, None])[:, 0]

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] to [B, T, H]."""
        if not self._is_dense:
            return self._mixture(x)
        return self._apply(self._block.down_proj, self._swiglu(self._inputs, x))
