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
# Rows [B, K - 1 + T, C] to those of a depthwise convolution over K of them, [B, T, C]
Convolve = Callable[[mx.array], mx.array]


def shifted_sums(convolution: nn.Module) -> Convolve:
    """A :data:`Convolve` of a product for each tap."""
    taps = mx.contiguous(convolution.weight[:, :, 0].T)  # [K, C]
    rows_of = [tap.squeeze(0) for tap in mx.split(taps, len(taps))]

    def convolve(rows: mx.array) -> mx.array:
        n_tokens = rows.shape[1] - len(rows_of) + 1
        if n_tokens == 1:
            return (rows * taps).sum(axis=1, keepdims=True)
        total = rows[:, :n_tokens] * rows_of[0]
        for i, tap in enumerate(rows_of[1:], 1):
            total = total + rows[:, i : i + n_tokens] * tap
        return total

    return convolve


def convolution(module: nn.Module) -> Convolve:
    """A :data:`Convolve` by MLX's own, in one launch."""

    def convolve(rows: mx.array) -> mx.array:
        out: mx.array = module(rows)
        return out

    return convolve


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
        convolve: makes the short convolution in front of it of its module.
        swiglu: the middle of a dense feed-forward block.
        add_norm: makes the residual sum and the norm after it, which every half of a layer ends with.
    """

    sigmoid: Unary = mx.sigmoid
    silu: Unary = nn.silu
    apply: Apply = apply_layer
    attend: Attend = fused_attention
    rule: DeltaRule = field(default_factory=Chunked)
    convolve: Callable[[nn.Module], Convolve] = shifted_sums
    swiglu: Swiglu = swiglu
    add_norm: Callable[[nn.Module], AddNorm] = add_norm
