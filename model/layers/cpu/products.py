"""Products of many rows with a layer's matrix, in NumPy, for threads to share."""

from __future__ import annotations

from itertools import pairwise

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from model.layers.cpu.crew import Crew

Array = NDArray[np.float32]

# Rows from which on a prompt is worth the threads, and those one piece of work has at least.
MANY_ROWS, _FEWEST_ROWS = 32, 16


def can_multiply(*layers: nn.Module) -> bool:
    """Whether :func:`matrix` gives the matrices of all ``layers``, which compute in float32."""
    return all(_is_plain(layer) or _is_packed(layer) for layer in layers)


def matrix(layer: nn.Module) -> Array:
    """[in, out]: a view of the weights, or their unpacked form. Call on the thread that runs MLX."""
    if _is_packed(layer):
        weight = mx.dequantize(layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)
    else:
        weight = layer.weight
    return np.asarray(weight).T


def pieces(n_rows: int, crew: Crew) -> list[slice]:
    """Rows in as many even pieces as there are threads, or in fewer."""
    n = max(1, min(crew.size, n_rows // _FEWEST_ROWS))
    bounds = [n_rows * i // n for i in range(n + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def multiply(x: Array, weight: Array, crew: Crew) -> Array:
    """x [T, in] by ``weight`` [in, out]."""
    out = np.empty((len(x), weight.shape[1]), np.float32)
    parts = pieces(len(x), crew)
    crew.each(lambda i: np.matmul(x[parts[i]], weight, out=out[parts[i]]), len(parts))
    return out


def one_plus_exp_minus(x: Array, out: Array) -> Array:
    """1 + exp(-x), what a sigmoid divides by, in ``out``; where it overflows, the quotient is the right 0."""
    with np.errstate(over="ignore"):
        np.exp(np.negative(x, out=out), out=out)
    out += 1.0
    return out


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and "bias" not in layer and bool(layer.weight.dtype == mx.float32)


def _is_packed(layer: nn.Module) -> bool:
    is_affine = type(layer) is nn.QuantizedLinear and layer.mode == "affine" and "bias" not in layer
    return is_affine and bool(layer.scales.dtype == mx.float32)
