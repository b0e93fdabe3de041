"""SwiGLU between the products of a dense feed-forward block."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from model.backend import BackendKind
from model.layers.elementwise import Elementwise
from model.layers.projection import Projection

# The gate and up projections and their input [..., H] to silu(gate) * up [..., F]
Swiglu = Callable[[Projection, mx.array], mx.array]


def swiglu_for(kind: BackendKind, math: Elementwise) -> Swiglu:
    """The implementation for a device."""
    if kind == "cuda":
        from model.devices.cuda.pointwise import swiglu

        return lambda inputs, x: swiglu(inputs.joined(x))

    def apply(inputs: Projection, x: mx.array) -> mx.array:
        gate, up = inputs(x)
        return math.silu(gate) * up

    return apply
