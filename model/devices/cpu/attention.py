"""A full-attention layer on the CPU in NumPy: prompts on all cores, and steps.

A block of queries meets the keys block after block, with the running maximum and sum of Milakov and
Gimelshein ("Online normalizer calculation for softmax", 2018), so that its scores stay in a core's cache
however long the history is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from model.checkpoint.config import ModelConfig
from model.devices.cpu.rows import (
    MANY_ROWS,
    Array,
    Crew,
    RmsNorm,
    StepInputs,
    can_multiply,
    is_plain,
    matrix,
    multiply,
    one_plus_exp_minus,
    step_multiply,
)
from model.layers.attention import Attention, StepGroup
from model.layers.ops import Ops
from model.state import KvRows

_ROWS, _KEYS = 256, 512  # scores computed at once: half a megabyte
_LONG = 1 << 19  # numbers in a head's keys from which on a single query is shared between threads


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the sequences of a group stand in a step, for all layers.

    Attributes:
        members: [b], rows of the batch.
        padding: [b], columns on the left that are none of a sequence's.
        cos, sin: of the rotary angles, [b, T, 1, dims / 2].
    """

    members: NDArray[np.int32]
    padding: NDArray[np.int32]
    cos: Array
    sin: Array


class CpuAttention(Attention):
    """See :class:`Attention`, which takes short prompts and layers of other kinds (LoRA).

    Attributes:
        steps_in_numpy: whether :meth:`step_rows` may be called.
    """

    def __init__(self, block: nn.Module, config: ModelConfig, ops: Ops, crew: Crew) -> None:
        super().__init__(block, config, ops)
        self._crew = crew
        self._can_multiply = can_multiply(*self._inputs.layers, block.o_proj)
        # mlx-lm's plain rotary positions: neither interleaved nor stretched by a table.
        turns_plainly = type(block.rope) is nn.RoPE and not block.rope.traditional
        self.steps_in_numpy = turns_plainly and all(map(is_plain, (*self._inputs.layers, block.o_proj)))
        if self.steps_in_numpy:
            self._step_inputs = StepInputs(self._inputs, crew)
            self._step_output = matrix(block.o_proj)
            self._q_norm, self._k_norm = RmsNorm(block.q_norm), RmsNorm(block.k_norm)
            half = block.rope.dims // 2
            # As MLX's CPU backend computes them, to the last bit.
            rates = mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(block.rope.base) / half))
            self._rates = np.asarray(rates) * np.float32(block.rope.scale)

    def prefill(self, x: mx.array, rows: KvRows) -> mx.array:
        if x.shape[1] < MANY_ROWS or not self._can_multiply:
            return super().prefill(x, rows)
        inputs = np.asarray(x)[0]
        outputs = [multiply(inputs, matrix(layer), self._crew) for layer in self._inputs.layers]
        q, k, v, gate = self._heads(*(mx.array(part)[None] for part in self._inputs.split(outputs)))
        q, keys, values = self._append(q, k, v, rows, rows.length)
        # Evaluated together: the queries need no more of MLX.
        mx.eval(q, keys, values, gate)
        q, keys, values, closing = (np.asarray(side)[0] for side in (q, keys, values, gate))
        mixed = attend(q, keys, values, self._scale, self._crew)
        mixed /= one_plus_exp_minus(closing.reshape(mixed.shape), np.empty_like(mixed))
        return mx.array(multiply(mixed, matrix(self._block.o_proj), self._crew))[None]

    def standing(self, group: StepGroup, n_tokens: int) -> Standing:
        """Where ``group`` stands in a step of T tokens; the same for every layer."""
        members = np.asarray(group.members)
        padding = np.zeros(len(members), np.int32) if group.padding is None else np.asarray(group.padding)
        positions = (group.n_columns - padding)[:, None] + np.arange(n_tokens)
        angles = positions.astype(np.float32)[..., None, None] * self._rates
        return Standing(members, padding, np.cos(angles), np.sin(angles))

    def step_rows(
        self, x: Array, groups: Sequence[StepGroup], standings: Sequence[Standing], layer: int
    ) -> Array:
        """:meth:`step` of rows [B, H]; ``standings`` are those of ``groups``."""
        q, k, v, closing = self._rows(x)
        q *= np.float32(self._scale)
        mixed = np.empty_like(q)
        for group, standing in zip(groups, standings, strict=True):
            at = standing.members if len(groups) > 1 else slice(None)
            turned, keys = (_turned(side[at, None], standing)[:, 0] for side in (q, k))
            all_keys, all_values = append_rows(group.kv[layer], keys[:, :, None], v[at][:, :, None])
            mixed[at] = attend_one(turned, all_keys, all_values, standing.padding, self._crew)
        mixed /= one_plus_exp_minus(closing, closing)
        return step_multiply(mixed.reshape(len(x), -1), self._step_output, self._crew)

    def extend_rows(
        self, x: Array, groups: Sequence[StepGroup], standings: Sequence[Standing], layer: int
    ) -> Array:
        """:meth:`step` of T tokens of each of B sequences, x [B * T, H]."""
        n_tokens = standings[0].cos.shape[1]
        q, k, v, closing = self._rows(x)
        by_seq = (-1, n_tokens, *q.shape[1:])
        q, k, v = (
            q.reshape(by_seq),
            k.reshape(-1, n_tokens, *k.shape[1:]),
            v.reshape(-1, n_tokens, *v.shape[1:]),
        )
        mixed = np.empty(q.shape, np.float32)
        for group, standing in zip(groups, standings, strict=True):
            queries, keys = (_turned(side[standing.members], standing) for side in (q, k))
            all_keys, all_values = append_rows(
                group.kv[layer], keys.swapaxes(1, 2), v[standing.members].swapaxes(1, 2)
            )
            for i, (member, padding) in enumerate(zip(standing.members, standing.padding, strict=True)):
                own = slice(int(padding), None)
                out = attend(
                    queries[i].swapaxes(0, 1),
                    all_keys[i, :, own],
                    all_values[i, :, own],
                    self._scale,
                    self._crew,
                )
                mixed[member] = out.reshape(mixed[member].shape)
        mixed = mixed.reshape(closing.shape)
        mixed /= one_plus_exp_minus(closing, closing)
        return step_multiply(mixed.reshape(len(x), -1), self._step_output, self._crew)

    def _rows(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Rows [n, H] to normed q [n, Hq, D] and k, v [n, Hkv, D], before positions; and the gate."""
        q, k, v = self._step_inputs(x)
        q = q.reshape(len(x), self._n_heads, -1)
        dim = q.shape[-1] // 2
        closing = np.ascontiguousarray(q[..., dim:])
        k, v = (side.reshape(len(x), -1, dim) for side in (k, v))
        return self._q_norm(q[..., :dim]), self._k_norm(k), v, closing


def append_rows(rows: KvRows, keys: Array, values: Array) -> tuple[Array, Array]:
    """Add rows of each sequence, [B, H, T, D], in place: the buffers' memory is the host's.

    Returns views [B, H, length, D] of everything in use, for the moment."""
    if rows.layout.bits:
        stored = rows.append(mx.array(keys), mx.array(values))
        return np.asarray(stored[0]), np.asarray(stored[1])
    at = rows.length
    views = [np.asarray(buffer) for buffer in rows.reserve(keys.shape[2])]
    for view, new in zip(views, (keys, values), strict=True):
        view[:, :, at : rows.length] = new
    return views[0][:, :, : rows.length], views[1][:, :, : rows.length]


def _turned(x: Array, standing: Standing) -> Array:
    """[b, T, heads, D] with its first dimensions turned to the sequences' positions."""
    half = standing.cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = x.copy()
    turned[..., :half] = first * standing.cos - second * standing.sin
    turned[..., half : 2 * half] = first * standing.sin + second * standing.cos
    return turned


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
