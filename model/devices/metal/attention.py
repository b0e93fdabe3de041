"""Attention on Metal: MLX's fused kernels, of prompts over wide heads in blocks of queries; over packed rows
its quantised products."""

from __future__ import annotations

import mlx.core as mx

from model.layers.attention import query_blocks
from model.layers.ops import Mask, fused_attention
from model.state import KvRows

# The widest heads of which MLX has a fused kernel for prompts, the longest steps that its kernel for steps
# takes, how many scores may be in memory at once, and the fewest rows of a block.
_FUSED_WIDTH = 128
_STEP_QUERIES = 8
_MOST_SCORES = 1 << 27
_FEWEST_ROWS = 8
# Scores and shares, in float32 at worst.
ATTENTION_BYTES = 2 * 4 * _MOST_SCORES


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
