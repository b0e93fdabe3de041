"""The gated delta rule over many tokens of some heads, in NumPy on the calling thread.

The mathematics and the names are those of :mod:`model.layers.gdn`. U and W are solved for, 16 rows after
16 rows, where that multiplies by an inverse.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from model.devices.cpu.rows import Array

CHUNK = 64
_BLOCK = 16
# Added to a difference of log decays, it leaves nothing of what a later token would give an earlier one.
_PAST = np.where(np.tri(CHUNK, dtype=bool), 0.0, -np.inf).astype(np.float32)


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    log_decay: Array,
    beta: Array,
    state: Array,
    captures: Mapping[int, Array],
) -> Array:
    """Feed N * 64 tokens; those of the padding at the end are zero in every argument and change nothing.

    Args:
        q, k: [G, N * 64, Dk], normalised, q scaled.
        v: [G * R, N * 64, Dv]; value head h reads key head h // R.
        log_decay, beta: [G * R, N * 64].
        state: [G * R, Dv, Dk]; it advances in place.
        captures: by token count, where to put the state after so many, each like ``state``.

    Returns:
        Outputs [G * R, N * 64, Dv].
    """
    n_keys, n_tokens, dk = k.shape
    n_heads, _, dv = v.shape
    chunks = (n_tokens // CHUNK, CHUNK)
    grouped = (n_keys, n_heads // n_keys, *chunks)
    q, k = (x.reshape(n_keys, 1, *chunks, dk) for x in (q, k))
    values, beta = v.reshape(*grouped, dv), beta.reshape(*grouped, 1)
    total = np.cumsum(log_decay.reshape(grouped), axis=-1)  # [G, R, N, C]
    decay = total[..., :, None] - total[..., None, :]
    decay += _PAST
    np.exp(decay, out=decay)  # [G, R, N, C, C]
    since_start = np.exp(total)[..., None]
    to_end = np.exp(total[..., -1:] - total)[..., None]

    kt = k.swapaxes(-1, -2)
    a = k @ kt * decay
    a *= beta
    solved = np.empty((*grouped, dv + dk), np.float32)
    np.multiply(values, beta, out=solved[..., :dv])
    np.multiply(k, beta * since_start, out=solved[..., dv:])
    _solve(a, solved)
    decay *= q @ kt
    by_head = (n_heads, *chunks, -1)
    reading, writing = ((scale * x).reshape(by_head) for scale, x in ((since_start, q), (to_end, k)))
    solved, decay, since_start = (x.reshape(by_head) for x in (solved, decay, since_start))
    news, w = solved[..., :dv], solved[..., dv:]

    out = np.empty((n_heads, *chunks, dv), np.float32)
    for n in range(chunks[0]):
        turned = state.swapaxes(-1, -2)
        new = news[:, n]
        new -= w[:, n] @ turned
        np.matmul(reading[:, n], turned, out=out[:, n])
        for position, captured in captures.items():
            r = position - 1 - n * CHUNK
            if 0 <= r < CHUNK:
                weight = np.exp(total[..., n, r : r + 1] - total[..., n, : r + 1])[..., None]
                kept = (weight * k[..., n, : r + 1, :]).reshape(n_heads, r + 1, dk)
                captured[...] = since_start[:, n, r, :, None] * state
                captured += new[:, : r + 1].swapaxes(-1, -2) @ kept
        state *= since_start[:, n, -1:]
        state += new.swapaxes(-1, -2) @ writing[:, n]
    out += decay @ news
    return out.reshape(n_heads, n_tokens, dv)


def _solve(a: Array, x: Array) -> None:
    """Solve (I + A) X = B in place of B [..., C, m], A [..., C, C] read strictly below its diagonal."""
    inverses = _diagonal_inverses(a)  # [..., C / 16, 16, 16]
    for b in range(CHUNK // _BLOCK):
        here = slice(b * _BLOCK, (b + 1) * _BLOCK)
        rest = x[..., here, :]
        if b:
            rest -= a[..., here, : here.start] @ x[..., : here.start, :]
        rest[...] = inverses[..., b, :, :] @ rest


def _diagonal_inverses(a: Array) -> Array:
    """(I + A_bb)^-1 of the 16 x 16 blocks on the diagonal, by forward substitution in all at once."""
    *batch, size, _ = a.shape
    n_blocks = size // _BLOCK
    blocks = a.reshape(*batch, n_blocks, _BLOCK, n_blocks, _BLOCK)
    diagonal = np.stack([blocks[..., b, :, b, :] for b in range(n_blocks)], axis=-3)
    below = np.ascontiguousarray(diagonal.reshape(-1, _BLOCK, _BLOCK).transpose(1, 2, 0))  # [16, 16, n]
    inverse = np.zeros_like(below)
    inverse[range(_BLOCK), range(_BLOCK)] = 1.0
    for j in range(_BLOCK - 1):
        inverse[j + 1 :, : j + 1] -= below[j + 1 :, j, None] * inverse[j, : j + 1]
    return np.ascontiguousarray(inverse.transpose(2, 0, 1)).reshape(diagonal.shape)
