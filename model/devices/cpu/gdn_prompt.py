"""What a GDN layer computes between its projections for many tokens, in NumPy on all of the CPU's cores.

A key head and the value heads that read it need nothing of the others from the convolution to the gated
norm: the heads are shared out to the threads, which take blocks of tokens that fit a core's cache. The
mathematics and the names of the delta rule are those of :mod:`model.layers.delta_rule`. U and W are solved
for, 16 rows after 16 rows, where that multiplies by an inverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model.checkpoint.config import ModelConfig
from model.devices.cpu.rows import Array, Crew, normalise, one_plus_exp_minus

# Tokens and key heads that a thread works on at once: few enough to nearly fit a core's cache.
_PART, _MOST_HEADS = 512, 2
CHUNK = 64
_BLOCK = 16
# Added to a difference of log decays, it leaves nothing of what a later token would give an earlier one.
_PAST = np.where(np.tri(CHUNK, dtype=bool), 0.0, -np.inf).astype(np.float32)


@dataclass(frozen=True, slots=True)
class MixWeights:
    """What a layer has between its projections.

    Attributes:
        taps: of the convolution, [K, C].
        rate: -exp(A_log), [Hv].
        dt_bias: [Hv].
        norm: of the gated norm, [Dv].
        eps: of the gated norm.
    """

    taps: Array
    rate: Array
    dt_bias: Array
    norm: Array
    eps: float


@dataclass(frozen=True, slots=True)
class Rows:
    """What the projections give of T tokens: qkv [T, C], z [T, Hv * Dv], b and a [T, Hv]."""

    qkv: Array
    z: Array
    b: Array
    a: Array


def mix(
    rows: Rows,
    window: Array,
    state: Array,
    capture_at: Sequence[int],
    weights: MixWeights,
    config: ModelConfig,
    crew: Crew,
) -> tuple[Array, Array, list[Array]]:
    """Feed T tokens of one sequence.

    Args:
        window: the rows of qkv before, [K - 1, C].
        state: [Hv, Dv, Dk].
        capture_at: token counts in 1..T after which the state is wanted, ascending.

    Returns:
        The gated and normalised outputs [T, Hv * Dv], the state after T tokens, the states asked for.
    """
    out = np.empty(rows.z.shape, np.float32)
    last = state.copy()
    captured = [np.empty(state.shape, np.float32) for _ in capture_at]
    n_heads = config.n_key_heads
    # Several heads at once make fewer and longer calls, between which threads wait for Python's lock.
    n_together = max(1, min(_MOST_HEADS, n_heads // crew.size))

    def one(group: int) -> None:
        first = group * n_together
        heads = _Heads(first, min(n_together, n_heads - first), rows, window, weights, config)
        heads.run(last, capture_at, out, captured)

    crew.each(one, -(-n_heads // n_together))
    return out, last, captured


class _Heads:
    """G key heads in a row, and the R value heads that read each of them."""

    def __init__(
        self, first: int, n: int, rows: Rows, window: Array, weights: MixWeights, config: ModelConfig
    ) -> None:
        dk, dv = config.key_head_dim, config.value_head_dim
        n_shared = config.n_value_heads // config.n_key_heads
        keys, values = config.n_key_heads * dk, slice(first * n_shared * dv, (first + n) * n_shared * dv)
        self._dims = n, n_shared, dk, dv
        self._rows, self._window, self._weights = rows, window, weights
        self._q = slice(first * dk, (first + n) * dk)
        self._k = slice(keys + self._q.start, keys + self._q.stop)
        self._v = slice(2 * keys + values.start, 2 * keys + values.stop)
        self._z = values
        self._heads = slice(first * n_shared, (first + n) * n_shared)

    def run(self, state: Array, capture_at: Sequence[int], out: Array, captured: list[Array]) -> None:
        """Advance these heads' part of ``state`` in place, and fill theirs of ``out`` and ``captured``."""
        current = state[self._heads]
        n_tokens = len(out)
        for start in range(0, n_tokens, _PART):
            end = min(start + _PART, n_tokens)
            wanted = [(i, p) for i, p in enumerate(capture_at) if start < p <= end]
            captures = {position - start: captured[i][self._heads] for i, position in wanted}
            _, _, dk, dv = self._dims
            q, k = (self._convolved(part, dk, start, end) for part in (self._q, self._k))
            normalise(q, dk**-0.5)
            normalise(k, 1.0)
            v = self._convolved(self._v, dv, start, end)
            log_decay, beta = self._gates(start, end)
            mixed = delta_rule(q, k, v, log_decay, beta, current, captures)
            self._gated_norm(mixed[:, : end - start], start, end, out)

    def _convolved(self, columns: slice, dim: int, start: int, end: int) -> Array:
        """Convolution and silu of heads ``dim`` wide: [heads, n, dim] in whole chunks, their ends 0."""
        taps = self._weights.taps[:, columns]
        n_tokens, n_before, width = end - start, len(taps) - 1, taps.shape[1]
        # Copied once, so that every pass below runs over rows without gaps.
        rows = np.ascontiguousarray(
            _tail(self._window[:, columns], self._rows.qkv[:, columns], end, n_before + n_tokens)
        )
        total = rows[:n_tokens] * taps[0]
        product = np.empty_like(total)
        for tap in range(1, len(taps)):
            total += np.multiply(rows[tap : tap + n_tokens], taps[tap], out=product)
        by_head = (n_tokens, width // dim, dim)
        out = np.empty((by_head[1], _whole_chunks(n_tokens), dim), np.float32)
        divisor = one_plus_exp_minus(total, product).reshape(by_head)
        np.divide(total.reshape(by_head), divisor, out=out[:, :n_tokens].swapaxes(0, 1))
        out[:, n_tokens:] = 0.0
        return out

    def _gates(self, start: int, end: int) -> tuple[Array, Array]:
        """The log decay and the writing strength, [heads, n] in whole chunks, their ends 0."""
        n_keys, n_shared, _, _ = self._dims
        n_tokens = end - start
        found = np.zeros((2, n_keys * n_shared, _whole_chunks(n_tokens)), np.float32)
        a, b = (x[start:end, self._heads].T for x in (self._rows.a, self._rows.b))
        a = a + self._weights.dt_bias[self._heads, None]
        # log(1 + e^a), without overflow
        softplus = np.log1p(np.exp(-np.abs(a))) + np.maximum(a, 0.0)
        found[0, :, :n_tokens] = softplus * self._weights.rate[self._heads, None]
        found[1, :, :n_tokens] = 1.0 / one_plus_exp_minus(b, np.empty_like(b))
        return found[0], found[1]

    def _gated_norm(self, mixed: Array, start: int, end: int, out: Array) -> None:
        """The norm of outputs [heads, T, Dv], gated by z, into these heads' part of ``out``."""
        n_heads, n_tokens, dv = mixed.shape
        z = np.ascontiguousarray(self._rows.z[start:end, self._z])
        z /= one_plus_exp_minus(z, np.empty_like(z))
        gate = z.reshape(n_tokens, n_heads, dv)
        gate *= self._weights.norm
        mean = np.vecdot(mixed, mixed) / np.float32(dv)
        mixed *= (1.0 / np.sqrt(mean + np.float32(self._weights.eps)))[..., None]
        gate *= mixed.swapaxes(0, 1)
        out[start:end, self._z] = z


def window_after(window: Array, qkv: Array, n_tokens: int) -> Array:
    """The rows [K - 1, C] that the convolution needs of the past after ``n_tokens`` of ``qkv``."""
    return _tail(window, qkv, n_tokens, len(window))


def _tail(window: Array, qkv: Array, end: int, n_rows: int) -> Array:
    """The last ``n_rows`` of the window and the first ``end`` rows after it."""
    if n_rows <= end:
        return qkv[end - n_rows : end]
    return np.concatenate([window[len(window) + end - n_rows :], qkv[:end]])


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


def _whole_chunks(n_tokens: int) -> int:
    return -(-n_tokens // CHUNK) * CHUNK
