"""MLX's operations in the forms that its CPU backend is fast in, for short prompts and for layers that NumPy
does not take.

MLX's CPU backend evaluates ``exp`` one element at a time (16 ns each where a product of two arrays
takes 0.1 ns), and a prefill has thousands of them a token. Here the exponential is a polynomial made
of operations that do run over whole vectors; fused by ``mx.compile`` where a C++ compiler is
installed (0.8 ns), else op by op (2 ns).
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from model.layers.attention import query_blocks
from model.layers.delta_rule import Chunked
from model.layers.ops import Mask, Ops, Projection, Unary, apply_layer, apply_unpacked

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: n * _LN2_HIGH is exact in float32 for every n that occurs (Cody and Waite, 1980).
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_SMALLEST, _LARGEST = -87.0, 88.0
_TAYLOR = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)

# Query rows whose scores are in memory at once: many enough for the products, few enough for the caches.
_MOST_ROWS, _FEWEST_ROWS = 128, 8
_BLOCK_SCORES = 1 << 20
_HALVED = 512  # columns from which on halving pays


def cpu_ops() -> Ops:
    """What layers compute with."""
    return Ops(sigmoid=sigmoid, silu=silu, apply=apply, attend=attend, rule=Chunked(exp), swiglu=swiglu)


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


def exp(x: mx.array) -> mx.array:
    """e^x."""
    return _dense(_fused_exp, x)


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + e^-x)."""
    return _dense(_fused_sigmoid, x)


def silu(x: mx.array) -> mx.array:
    """x / (1 + e^-x)."""
    return _dense(_fused_silu, x)


def swiglu(inputs: Projection, x: mx.array) -> mx.array:
    """See :data:`model.layers.ops.Swiglu`."""
    gate, up = inputs(x)
    return silu(gate) * up


def _dense(function: Unary, x: mx.array) -> mx.array:
    """``function`` of float32: fused kernels walk strided arrays one by one, so those are copied first."""
    return function(mx.contiguous(x.astype(mx.float32))).astype(x.dtype)


def apply(layer: nn.Module, x: mx.array) -> mx.array:
    """See :data:`model.layers.ops.Apply`."""
    if "bias" in layer:
        return apply_layer(layer, x)
    n_rows = x.size // x.shape[-1]
    if type(layer) is nn.Linear and n_rows == 1:
        # OpenBLAS is 1.5 times as fast at matrix times column as at row times matrix.
        column: mx.array = layer.weight @ x.reshape(-1, 1)
        return column.reshape(*x.shape[:-1], -1)
    return apply_unpacked(layer, x)


def attend(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
    """Blocks of queries against all the keys they may see, with the vectorised exponential.

    MLX's own CPU path computes every score of the square, then half of them are masked, and spends
    most of its time in the exponential.
    """
    n_seqs, n_heads, n_queries, dim = q.shape
    n_kv_heads, n_keys = k.shape[1], k.shape[2]
    # The heads that share keys stand below each other: one product for all of them.
    q = (q * scale).reshape(n_seqs, n_kv_heads, n_heads // n_kv_heads, n_queries, dim)
    n_rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _BLOCK_SCORES // (n_seqs * n_heads * n_keys)))
    outs = []
    for rows, n_past in query_blocks(n_queries, n_keys, n_rows):
        seen = n_past if mask == "causal" else n_keys
        block = q[:, :, :, rows]  # [B, Hkv, G, t, D]
        n = block.shape[3]
        scores = block.reshape(n_seqs, n_kv_heads, -1, dim) @ k[:, :, :seen].swapaxes(-1, -2)
        grouped = scores.reshape(n_seqs, n_kv_heads, -1, n, seen)
        if isinstance(mask, mx.array):
            grouped = mx.where(mask[:, :, None], grouped, -mx.inf)
        elif mask == "causal" and n > 1:
            grouped = grouped + _future(n, seen)
        weights = exp(grouped - _over_last(mx.maximum, mx.max, grouped))
        total = _over_last(mx.add, mx.sum, weights)
        out = (weights.reshape(scores.shape) @ v[:, :, :seen]).reshape(*grouped.shape[:-1], dim)
        outs.append(out / total)
    joined = mx.concatenate(outs, axis=3) if len(outs) > 1 else outs[0]
    return joined.reshape(n_seqs, n_heads, n_queries, dim)


def _over_last(
    pairwise: Callable[[mx.array, mx.array], mx.array], reduce: Callable[..., mx.array], x: mx.array
) -> mx.array:
    """``reduce`` over the last axis, kept as 1; halves are laid together first.

    MLX's CPU reductions go one by one along a row (0.5 ns an element); operations on two arrays run over
    whole vectors.
    """
    rest = []
    while x.shape[-1] >= _HALVED:
        half = x.shape[-1] // 2
        if x.shape[-1] % 2:
            rest.append(x[..., -1:])
        x = pairwise(x[..., :half], x[..., half : 2 * half])
    return reduce(mx.concatenate([x, *rest], axis=-1) if rest else x, axis=-1, keepdims=True)


def _future(n_queries: int, n_keys: int) -> mx.array:
    """[t, S] with a large negative number where a key comes after the query, the last query seeing all."""
    square = mx.triu(mx.full((n_queries, n_queries), -1e9), 1)
    return mx.pad(square, [(0, 0), (n_keys - n_queries, 0)])
