"""One matrix product of a decode step, with the norm in front of it or the sum behind it."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from model.devices.cuda.kernels.few_rows import Norm, can_multiply, matrix_of, multiply
from model.devices.cuda.kernels.pointwise import swiglu
from model.layers.ops import Apply


class Product:
    """One kernel where it takes the rows and the layer, the same from its parts elsewhere.

    Args:
        layers: linear layers over one input, whose outputs lie side by side.
        apply: how a layer is applied where the kernel does not take it.
        norm: an RMS norm of the input.
        is_gated: the outputs are [gate | up], and silu(gate) * up is the result.
        dtype: of the result; that of the input if None.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        apply: Apply,
        *,
        norm: nn.Module | None = None,
        is_gated: bool = False,
        dtype: mx.Dtype | None = None,
    ) -> None:
        self._layers = layers
        self._apply = apply
        self._norm = norm
        self._is_gated = is_gated
        self._dtype = dtype
        fits = len(layers) == 1 and (norm is None or norm.weight.dtype == mx.bfloat16)
        self._matrix = matrix_of(layers[0]) if fits else None
        self._fused_norm = None if norm is None else Norm(norm.weight, norm.eps)

    def __call__(self, x: mx.array, residual: mx.array | None = None) -> mx.array:
        """x [B, in] to [B, out], ``residual`` [B, out] added to it."""
        dtype = self._dtype or x.dtype
        if self._matrix is not None and can_multiply(x):
            return multiply(
                x, self._matrix, norm=self._fused_norm, gated=self._is_gated, residual=residual, dtype=dtype
            )
        if self._norm is not None:
            x = self._norm(x)
        parts = [self._apply(layer, x) for layer in self._layers]
        out = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)
        if self._is_gated:
            out = swiglu(out)
        if residual is not None:
            out = residual + out
        return out.astype(dtype)
