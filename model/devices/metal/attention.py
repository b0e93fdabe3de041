"""Attention on Metal: MLX's fused kernels; of prompts over wide heads in blocks of queries, or by a fused
kernel that MLX does not choose by itself, whichever is faster on this chip; over packed rows its quantised
products."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from model.layers.attention import query_blocks
from model.layers.ops import Attend, Mask, fused_attention
from model.state import KvRows

log = logging.getLogger("crossturn.model")

# The widest heads of which MLX has a fused kernel for prompts, the longest steps that its kernel for steps
# takes, how many scores may be in memory at once, and the fewest rows of a block.
_FUSED_WIDTH = 128
_STEP_QUERIES = 8
_MOST_SCORES = 1 << 27
_FEWEST_ROWS = 8
# Scores and shares, in float32 at worst.
ATTENTION_BYTES = 2 * 4 * _MOST_SCORES

# What the choice is made by: queries and keys of a short context and of a long one, and where one ends.
_SHORT, _LONG, _SHORT_KEYS = (1024, 1024), (512, 16384), 4096
_N_TIMES = 3


class Heads(NamedTuple):
    """Of a full-attention layer."""

    n_heads: int
    n_kv_heads: int
    head_dim: int


def attend(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
    """A prompt over wide heads in blocks of queries: MLX writes out all of its scores there, 4 GB a layer for
    2,048 tokens after 64,000."""
    _, n_heads, n_queries, dim = q.shape
    if not isinstance(mask, str) or dim <= _FUSED_WIDTH or n_queries <= _STEP_QUERIES:
        return fused_attention(q, k, v, scale, mask)
    n_keys = k.shape[2]
    n_rows = max(_FEWEST_ROWS, _MOST_SCORES // (n_heads * n_keys))
    outs = [
        fused_attention(q[:, :, rows], k[:, :, :seen], v[:, :, :seen], scale, mask)
        for rows, seen in query_blocks(n_queries, n_keys, n_rows)
    ]
    return mx.concatenate(outs, axis=2) if len(outs) > 1 else outs[0]


def forced(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
    """By a fused kernel, which writes out no scores. Raises ValueError where MLX has none."""
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, force_fused=True)


def chosen(
    blocks: Attend, heads: Heads, dtype: mx.Dtype, *, clock: Callable[[], float] = time.perf_counter
) -> Attend:
    """``blocks``, or for prompts over wide heads :func:`forced` where that is faster here and agrees: tried
    on random rows for short contexts and for long ones."""
    if heads.head_dim <= _FUSED_WIDTH:
        return blocks
    short, long = (_faster(blocks, heads, dtype, n_tokens, clock) for n_tokens in (_SHORT, _LONG))

    def attend(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
        if not isinstance(mask, str) or q.shape[2] <= _STEP_QUERIES:
            return blocks(q, k, v, scale, mask)
        return (short if k.shape[2] <= _SHORT_KEYS else long)(q, k, v, scale, mask)

    return blocks if short is long is blocks else attend


def _faster(
    blocks: Attend, heads: Heads, dtype: mx.Dtype, n_tokens: tuple[int, int], clock: Callable[[], float]
) -> Attend:
    n_queries, n_keys = n_tokens
    shapes = [(heads.n_heads, n_queries), (heads.n_kv_heads, n_keys), (heads.n_kv_heads, n_keys)]
    keys = mx.random.split(mx.random.key(0), len(shapes))
    q, k, v = (
        mx.random.normal((1, *shape, heads.head_dim), dtype, key=key)
        for shape, key in zip(shapes, keys, strict=True)
    )
    mx.eval(q, k, v)

    def run(attend: Attend) -> mx.array:
        out = attend(q, k, v, heads.head_dim**-0.5, "causal")
        mx.eval(out)
        return out

    def seconds(attend: Attend) -> float:
        times = []
        for _ in range(_N_TIMES):
            begun = clock()
            run(attend)
            times.append(clock() - begun)
        return min(times)

    try:
        found = run(forced).astype(mx.float32)  # the first run of each compiles
    except (ValueError, RuntimeError) as fault:
        log.debug("attention in blocks: %s", fault)
        return blocks
    wanted = run(blocks).astype(mx.float32)
    error = float(mx.abs(found - wanted).max() / mx.abs(wanted).max())
    bound = 1e-3 if dtype == mx.float32 else 3e-2
    if not error <= bound:
        log.warning("MLX's fused attention is off by %.1e over %d keys: blocks are used", error, n_keys)
        return blocks
    is_faster = seconds(forced) < seconds(blocks)
    log.info("attention over %d keys: %s", n_keys, "fused" if is_faster else "in blocks")
    return forced if is_faster else blocks


def attend_packed(q: mx.array, rows: KvRows, scale: float, mask: Mask) -> mx.array:
    """A few queries [B, Hq, T, D] over keys and values as they are stored, which are read once for all the
    heads that share them; nothing of the size of the rows is made besides the scores."""
    n_seqs, n_heads, n_queries, dim = q.shape
    layout, length = rows.layout, rows.length
    keys, key_scales, key_offsets, values, value_scales, value_offsets = rows.stored
    n_shared = n_heads // layout.n_heads
    together = (q * scale).reshape(n_seqs, layout.n_heads, n_shared * n_queries, dim)
    scores = mx.quantized_matmul(
        together, keys, key_scales, key_offsets, True, layout.group_size, layout.bits
    ).reshape(n_seqs, layout.n_heads, n_shared, n_queries, length)
    if mask is not None:
        if isinstance(mask, str):
            seen = mx.arange(length) <= mx.arange(length - n_queries, length)[:, None]
        else:
            seen = mask[:, :, None]  # [B, 1, 1, T, length]
        scores = mx.where(seen, scores, mx.finfo(scores.dtype).min)
    shares = mx.softmax(scores, axis=-1, precise=True).reshape(*together.shape[:3], length)
    out = mx.quantized_matmul(
        shares, values, value_scales, value_offsets, False, layout.group_size, layout.bits
    )
    return out.reshape(n_seqs, n_heads, n_queries, dim)
