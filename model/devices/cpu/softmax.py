"""Softmax attention in NumPy: causal of many queries, in blocks shared out to the threads, and of one.

A block meets the keys block after block, with the running maximum and sum of Milakov and Gimelshein
("Online normalizer calculation for softmax", 2018), so that its scores stay in a core's cache however
long the history is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.devices.cpu.crew import Crew
from model.devices.cpu.products import Array

_ROWS, _KEYS = 256, 512  # scores in hand at once: half a megabyte
_LONG = 1 << 19  # numbers of a head's keys from which on one query is worth the threads


def attend(q: Array, k: Array, v: Array, scale: float, crew: Crew) -> Array:
    """Attention of the last T of S positions over all up to their own.

    Args:
        q: [H, T, D].
        k, v: [Hkv, S, D]; query head h reads head h // (H / Hkv).

    Returns:
        [T, H * D].
    """
    n_heads, n_queries, dim = q.shape
    n_kv_heads, n_keys, _ = k.shape
    shared = n_heads // n_kv_heads
    n_rows = max(1, _ROWS // shared)
    starts = range(0, n_queries, n_rows)
    out = np.empty((n_queries, n_heads, dim), np.float32)

    def one(i: int) -> None:
        # The last queries see the most keys: those blocks first, so that the threads end together.
        start, head = starts[len(starts) - 1 - i // n_kv_heads], i % n_kv_heads
        rows = slice(start, min(start + n_rows, n_queries))
        heads = slice(head * shared, (head + 1) * shared)
        first = n_keys - n_queries + start
        out[rows, heads] = _block(q[heads, rows] * np.float32(scale), k[head], v[head], first).swapaxes(0, 1)

    crew.each(one, len(starts) * n_kv_heads)
    return out.reshape(n_queries, n_heads * dim)


def attend_one(q: Array, k: Array, v: Array, padding: NDArray[np.int32], crew: Crew) -> Array:
    """Attention of one query of each of B sequences over all its columns.

    Args:
        q: [B, H, D], scaled.
        k, v: [B, Hkv, S, D]; query head h reads head h // (H / Hkv).
        padding: [B], columns on the left that are not looked at.

    Returns:
        [B, H, D].
    """
    n_seqs, n_kv_heads, n_keys, dim = k.shape
    by_head = q.reshape(n_seqs, n_kv_heads, -1, dim)
    out = np.empty_like(by_head)

    def some(rows: slice, heads: slice) -> None:
        scores = np.matvec(k[rows, heads, None], by_head[rows, heads])  # [b, h, G, S]
        for row, n in zip(scores, padding[rows].tolist(), strict=True):
            row[..., :n] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        mixed = np.vecmat(scores, v[rows, heads, None], out=out[rows, heads])
        mixed /= scores.sum(axis=-1)[..., None]

    def one(i: int) -> None:
        row, head = divmod(i, n_kv_heads)
        some(slice(row, row + 1), slice(head, head + 1))

    if n_keys * dim < _LONG:
        some(slice(None), slice(None))
    else:
        crew.each(one, n_seqs * n_kv_heads)
    return out.reshape(q.shape)


def _block(q: Array, k: Array, v: Array, first: int) -> Array:
    """Queries [G, t, D], scaled, at positions from ``first`` on, over keys and values [S, D]: [G, t, D]."""
    shared, n_rows, dim = q.shape
    q = q.reshape(-1, dim)
    n_seen = first + n_rows
    top = np.full((len(q), 1), -np.inf, np.float32)
    total = np.zeros((len(q), 1), np.float32)
    mixed = np.zeros((len(q), dim), np.float32)
    ones = np.ones((_KEYS, 1), np.float32)
    for start in range(0, n_seen, _KEYS):
        end = min(start + _KEYS, n_seen)
        scores = q @ k[start:end].T
        if end > first + 1:
            future = np.arange(start, end) > np.arange(first, n_seen)[:, None]  # [t, keys]
            np.putmask(
                scores.reshape(shared, n_rows, -1), np.broadcast_to(future, (shared, *future.shape)), -np.inf
            )
        higher = np.maximum(top, scores.max(axis=-1, keepdims=True))
        scores -= higher
        np.exp(scores, out=scores)
        fading = np.exp(top - higher)
        total = total * fading + scores @ ones[: end - start]
        mixed *= fading
        mixed += scores @ v[start:end]
        top = higher
    mixed /= total
    return mixed.reshape(shared, n_rows, dim)
