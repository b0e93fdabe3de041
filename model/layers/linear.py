"""How a linear layer is applied: in the form that the device's products are fast in."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from model.backend import BackendKind
from model.devices.cuda.few_rows import can_multiply, matrix_of, multiply

# A layer and its input [..., in] to its output [..., out].
Apply = Callable[[nn.Module, mx.array], mx.array]

# From so many rows on, unpacking a quantised matrix for the plain product costs less than MLX's quantised
# one. On the CPU that runs at 3 GFLOP/s against 200. On CUDA it ran at a fifth of the plain one's speed for
# prompts, and for the rows [B, 1, in] of a batch it reads the matrix once for each row.
_UNPACK_ROWS = 4


def apply_for(kind: BackendKind) -> Apply:
    """The way for a device."""
    return {"cpu": _apply_on_cpu, "cuda": _apply_on_cuda, "metal": _apply}[kind]


def _apply(layer: nn.Module, x: mx.array) -> mx.array:
    out: mx.array = layer(x)
    return out


def unpacked(layer: nn.Module) -> mx.array:
    """The matrix [..., out, in] of an affinely quantised layer, made anew."""
    return mx.dequantize(layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)


def _apply_unpacked(layer: nn.Module, x: mx.array) -> mx.array:
    """Many rows through the unpacked matrix, which is made anew for each product and not kept."""
    many = x.size // x.shape[-1] >= _UNPACK_ROWS
    if many and type(layer) is nn.QuantizedLinear and "bias" not in layer and layer.mode == "affine":
        return x @ unpacked(layer).T
    return _apply(layer, x)


def _apply_on_cuda(layer: nn.Module, x: mx.array) -> mx.array:
    if can_multiply(x) and (matrix := matrix_of(layer)) is not None:
        return multiply(x.reshape(-1, x.shape[-1]), matrix).reshape(*x.shape[:-1], -1)
    return _apply_unpacked(layer, x)


def _apply_on_cpu(layer: nn.Module, x: mx.array) -> mx.array:
    if "bias" in layer:
        return _apply(layer, x)
    n_rows = x.size // x.shape[-1]
    if type(layer) is nn.Linear and n_rows == 1:
        # OpenBLAS is 1.5 times as fast at matrix times column as at row times matrix.
        column: mx.array = layer.weight @ x.reshape(-1, 1)
        return column.reshape(*x.shape[:-1], -1)
    return _apply_unpacked(layer, x)
