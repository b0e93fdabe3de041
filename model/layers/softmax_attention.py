"""Scaled dot-product attention: MLX's fused kernels on a GPU, our own blocks on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import mlx.core as mx

from model.backend import BackendKind
from model.layers.elementwise import Elementwise

Mask = mx.array | Literal["causal"] | None
# q [B, H, T, D], k and v [B, Hkv, S, D], scale, mask to [B, H, T, D]
Attend = Callable[[mx.array, mx.array, mx.array, float, Mask], mx.array]

Pairwise = Callable[[mx.array, mx.array], mx.array]
Reduction = Callable[..., mx.array]

# Query rows whose scores are in memory at once: many enough for the products, few enough for the caches.
_MOST_ROWS, _FEWEST_ROWS = 128, 8
_BLOCK_SCORES = 1 << 20
_HALVED = 512  # columns from which on halving pays

# On Metal: the widest heads of which MLX has a fused kernel for prompts, the longest steps that its kernel
# for steps takes, and how many scores may be in memory at once.
_FUSED_WIDTH = 128
_STEP_QUERIES = 8
_METAL_SCORES = 1 << 27


def attend_for(kind: BackendKind, math: Elementwise) -> Attend:
    """The implementation for a device."""
    if kind == "cpu":
        return BlockAttention(math)
    return _fused_in_blocks if kind == "metal" else _fused


def _fused(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def _fused_in_blocks(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
    """A prompt over wide heads in blocks of queries: MLX writes out all of its scores there, 4 GB a layer for
    2,048 tokens after 64,000."""
    _, n_heads, n_queries, dim = q.shape
    if not isinstance(mask, str) or dim <= _FUSED_WIDTH or n_queries <= _STEP_QUERIES:
        return _fused(q, k, v, scale, mask)
    n_keys = k.shape[2]
    n_rows = max(_FEWEST_ROWS, _METAL_SCORES // (n_heads * n_keys))
    outs = [
        _fused(q[:, :, rows], k[:, :, :seen], v[:, :, :seen], scale, mask)
        for rows, seen in query_blocks(n_queries, n_keys, n_rows)
    ]
    return mx.concatenate(outs, axis=2) if len(outs) > 1 else outs[0]


def query_blocks(n_queries: int, n_keys: int, n_rows: int) -> Iterator[tuple[slice, int]]:
    """Runs of ``n_rows`` of the last queries of a sequence, and for each how many of the keys its last query
    sees."""
    for start in range(0, n_queries, n_rows):
        end = min(start + n_rows, n_queries)
        yield slice(start, end), n_keys - n_queries + end


class BlockAttention:
    """Blocks of queries against all the keys they may see, with the vectorised exponential.

    MLX's own CPU path computes every score of the square, then half of them are masked, and spends
    most of its time in the exponential.
    """

    def __init__(self, math: Elementwise) -> None:
        self._math = math

    def __call__(self, q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
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
            weights = self._math.exp(grouped - _over_last(mx.maximum, mx.max, grouped))
            total = _over_last(mx.add, mx.sum, weights)
            out = (weights.reshape(scores.shape) @ v[:, :, :seen]).reshape(*grouped.shape[:-1], dim)
            outs.append(out / total)
        joined = mx.concatenate(outs, axis=3) if len(outs) > 1 else outs[0]
        return joined.reshape(n_seqs, n_heads, n_queries, dim)


def _over_last(pairwise: Pairwise, reduce: Reduction, x: mx.array) -> mx.array:
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
