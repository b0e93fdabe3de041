"""The residual sum and the norm after it, which every half of a layer ends with."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from model.backend import BackendKind

# x and y [..., H] to x + y and its norm
AddNorm = Callable[[mx.array, mx.array], tuple[mx.array, mx.array]]


def add_norm_for(kind: BackendKind) -> Callable[[nn.Module], AddNorm]:
    """What makes an :data:`AddNorm` of an RMS norm's module, for a device."""
    return _cuda_add_norm if kind == "cuda" else _add_norm


def _add_norm(norm: nn.Module) -> AddNorm:
    def apply(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
        total = x + y
        return total, norm(total)

    return apply


def _cuda_add_norm(norm: nn.Module) -> AddNorm:
    from model.devices.cuda.pointwise import add_norm

    return lambda x, y: add_norm(x, y, norm.weight, norm.eps)
