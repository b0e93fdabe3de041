"""The operations that layers are made of where devices differ: each has a plain form in MLX's own functions,
and a device puts another in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from model.layers.delta_rule import Chunked, DeltaRule
from model.layers.projection import Apply, Projection, apply_layer

Unary = Callable[[mx.array], mx.array]
Mask = mx.array | Literal["causal"] | None
# q [B, H, T, D], k and v [B, Hkv, S, D], scale, mask to [B, H, T, D]
Attend = Callable[[mx.array, mx.array, mx.array, float, Mask], mx.array]
# The gate and up projections and their input [..., H] to silu(gate) * up [..., F]
Swiglu = Callable[[Projection, mx.array], mx.array]
# x and y [..., H] to x + y and its norm
AddNorm = Callable[[mx.array, mx.array], tuple[mx.array, mx.array]]


def fused_attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
    """MLX's own attention, an :data:`Attend`."""
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def swiglu(inputs: Projection, x: mx.array) -> mx.array:
    """A :data:`Swiglu`."""
    gate, up = inputs(x)
    out: mx.array = nn.silu(gate) * up
    return out


def add_norm(norm: nn.Module) -> AddNorm:
    """An :data:`AddNorm` of an RMS norm's module."""

    def apply(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
        total = x + y
        return total, norm(total)

    return apply


@dataclass(frozen=True, slots=True)
class Ops:
    """The operations of a device, for the shapes of a model.

    Attributes:
        sigmoid, silu: keep the shape of their argument.
        apply: how a linear layer is applied.
        attend: scaled dot-product attention.
        rule: the gated delta rule.
        swiglu: the middle of a dense feed-forward block.
        add_norm: makes the residual sum and the norm after it, which every half of a layer ends with.
    """

    sigmoid: Unary = mx.sigmoid
    silu: Unary = nn.silu
    apply: Apply = apply_layer
    attend: Attend = fused_attention
    rule: DeltaRule = field(default_factory=Chunked)
    swiglu: Swiglu = swiglu
    add_norm: Callable[[nn.Module], AddNorm] = add_norm
