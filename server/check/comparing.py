"""How far two computations of the same thing may be apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from model.device import Device

Arrays = Sequence[NDArray[np.float32]]

# By the digits that a dtype has, which every layer loses some of.
_PASS_BOUNDS = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
_LAYER_BOUNDS = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2e-2}
# GPUs may round the factors of a float32 product to 10 digits.
_GPU_FLOAT32 = {"layer": 3e-3, "pass": 2e-2}


def pass_bound(dtype: str, device: Device) -> float:
    """How far apart two ways through the whole model may be."""
    gpu = _GPU_FLOAT32["pass"] if dtype == "float32" and device.kind != "cpu" else 0.0
    return max(_PASS_BOUNDS[dtype], gpu)


def layer_bound(dtype: str, device: Device) -> float:
    """How far apart two ways through a layer may be at least."""
    gpu = _GPU_FLOAT32["layer"] if dtype == "float32" and device.kind != "cpu" else 0.0
    return max(_LAYER_BOUNDS[dtype], gpu)


def numbers(arrays: Sequence[mx.array]) -> list[NDArray[np.float32]]:
    """The same, out of MLX."""
    return [np.array(a.astype(mx.float32)) for a in arrays]


def apart(found: Arrays, wanted: Arrays) -> float:
    """The root mean square of the differences over that of what is wanted, of the worst array.

    Infinite where one of them holds what is no number.
    """
    assert len(found) == len(wanted)
    return max((_one(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)


def logits_apart(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """:func:`apart` of logits, which a constant does not change."""
    return apart([found - found.mean()], [wanted - wanted.mean()])


def _one(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    assert found.shape == wanted.shape
    if not np.isfinite(found).all() or not np.isfinite(wanted).all():
        return math.inf
    scale = float(np.sqrt(np.mean(np.square(wanted, dtype=np.float64))))
    error = float(np.sqrt(np.mean(np.square(found.astype(np.float64) - wanted))))
    return error / scale if scale else (math.inf if error else 0.0)
