"""Exponentials and what is made of them, as fast as the device allows.

MLX's CPU backend evaluates ``exp`` one element at a time (16 ns each where a product of two arrays
takes 0.1 ns), and a prefill has thousands of them a token. Here the exponential is a polynomial made
of operations that do run over whole vectors; fused by ``mx.compile`` where a C++ compiler is
installed (0.8 ns), else op by op (2 ns).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from model.backend import BackendKind

Unary = Callable[[mx.array], mx.array]

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: n * _LN2_HIGH is exact in float32 for every n that occurs (Cody and Waite, 1980).
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_SMALLEST, _LARGEST = -87.0, 88.0
_TAYLOR = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """The functions a device computes with; all keep the shape of their argument."""

    exp: Unary
    sigmoid: Unary
    silu: Unary


def elementwise_for(kind: BackendKind) -> Elementwise:
    """Vectorised float32 polynomials on the CPU, MLX's own functions elsewhere."""
    if kind == "cpu":
        return Elementwise(_dense(_fused_exp), _dense(_fused_sigmoid), _dense(_fused_silu))
    return Elementwise(mx.exp, mx.sigmoid, nn.silu)


def _polynomial_exp(x: mx.array) -> mx.array:
    """e^x to 3e-7 for float32 x in [-87, 88]; beyond, the value at the border."""
    x = mx.minimum(mx.maximum(x, _SMALLEST), _LARGEST)
    rounded = x * _LOG2_E + _ROUND
    n = rounded - _ROUND
    rest = (x - n * _LN2_HIGH) - n * _LN2_LOW  # |rest| <= ln(2) / 2
    total = rest * _TAYLOR[0] + _TAYLOR[1]
    for coefficient in _TAYLOR[2:]:
        total = total * rest + coefficient
    # 2^n by writing n into the exponent's bits: the low bits of `rounded` hold it.
    power = ((rounded.view(mx.int32) << 23) + 0x3F800000).view(mx.float32)
    return total * power


_fused_exp = mx.compile(_polynomial_exp)
_fused_sigmoid = mx.compile(lambda x: 1.0 / (1.0 + _polynomial_exp(-x)))
_fused_silu = mx.compile(lambda x: x / (1.0 + _polynomial_exp(-x)))


def _dense(function: Unary) -> Unary:
    """``function`` of float32: fused kernels walk strided arrays one by one, so those are copied first."""
    return lambda x: function(mx.contiguous(x.astype(mx.float32))).astype(x.dtype)
