"""What a GDN layer does between its projections on the CPU, in NumPy: many tokens on all cores, or a step.

Of many tokens, a key head and the value heads that read it need nothing of the others from the convolution to
the gated norm: the heads are shared out to the threads, which take blocks of tokens that fit a core's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from model.checkpoint.config import ModelConfig
from model.devices.cpu.crew import Crew
from model.devices.cpu.delta_rule import CHUNK, delta_rule
from model.devices.cpu.rows import Array, one_plus_exp_minus, silu
from model.state import Recurrent

_PART = 512  # tokens at once, and
_MOST_HEADS = 2  # key heads: what a thread has in hand then nearly fits a core's cache
_NORM_EPS = 1e-6  # on the sum of squares of a query or a key


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


def step(
    rows: Rows, window: Array, state: Array, weights: MixWeights, config: ModelConfig
) -> tuple[Array, Array, Array]:
    """Feed one token to each of B sequences; see :func:`model.layers.delta_rule.delta_rule_step`.

    Args:
        rows: of the B tokens.
        window: the rows of qkv before, [B, K - 1, C].
        state: [B, Hv, Dv, Dk].

    Returns:
        The gated and normalised outputs [B, Hv * Dv], and new windows and states.
    """
    n_seqs, n_heads, dv, dk = state.shape
    n_keys = config.n_key_heads
    seen = np.concatenate([window, rows.qkv[:, None]], axis=1)
    mixed = silu(np.einsum("bkc,kc->bc", seen, weights.taps))
    keys = mixed[:, : 2 * n_keys * dk].reshape(n_seqs, 2 * n_keys, dk)
    _normalise(keys, 1.0)
    # Each key head as often as value heads read it: [B, Hv, Dk].
    q, k = (np.repeat(side, n_heads // n_keys, axis=1) for side in (keys[:, :n_keys], keys[:, n_keys:]))
    q *= np.float32(dk**-0.5)
    v = mixed[:, 2 * n_keys * dk :].reshape(n_seqs, n_heads, dv)

    decay = np.exp(weights.rate * np.logaddexp(rows.a + weights.dt_bias, np.float32(0.0)))[..., None]
    beta = (1.0 / one_plus_exp_minus(rows.b, np.empty_like(rows.b)))[..., None]
    error = beta * (v - decay * (state @ k[..., None])[..., 0])
    # (g S + error k^T) q = g (S q) + error (k . q)
    out = decay * (state @ q[..., None])[..., 0] + error * np.vecdot(k, q)[..., None]
    after = state * decay[..., None]
    after += error[..., None] * k[:, :, None]

    out /= np.sqrt(np.vecdot(out, out) / np.float32(dv) + np.float32(weights.eps))[..., None]
    out *= weights.norm
    gated = silu(rows.z)
    gated *= out.reshape(gated.shape)
    return gated, seen[:, 1:], after


@dataclass(frozen=True, slots=True)
class CpuTrail:
    """What a layer passed through in T tokens of each of B sequences: a state is made when it is asked for.

    Attributes:
        seen: what entered the convolution, the window before it in front, [B, K - 1 + T, C].
        state: before the tokens, [B, Hv, Dv, Dk].
        total: the log decay from there on, [B, Hv, T].
        news: what each token writes, [B, Hv, T, Dv].
        keys: where it writes it, [B, Hv, T, Dk].
    """

    seen: Array
    state: Array
    total: Array
    news: Array
    keys: Array

    def at(self, n_tokens: Sequence[int]) -> Recurrent:
        """See :class:`model.layers.gdn.Trail`."""
        n_kept = self.seen.shape[1] - self.news.shape[2]
        window = np.stack([rows[n : n + n_kept] for rows, n in zip(self.seen, n_tokens, strict=True)])
        matrix = np.empty_like(self.state)
        # Sequences that keep the same number go together.
        for n in set(n_tokens):
            which = np.flatnonzero(np.array(n_tokens) == n)
            total = self.total[which, :, :n]
            end = total[..., -1:]
            written = self.news[which, :, :n] * np.exp(end - total)[..., None]
            after = np.exp(end)[..., None] * self.state[which]
            after += written.swapaxes(-1, -2) @ self.keys[which, :, :n]
            matrix[which] = after
        return Recurrent(mx.array(window), mx.array(matrix))


def extend(
    rows: Rows, window: Array, state: Array, n_tokens: int, weights: MixWeights, config: ModelConfig
) -> tuple[Array, CpuTrail]:
    """Feed T tokens to each of B sequences, as one chunk of the chunkwise form; see
    :mod:`model.layers.delta_rule`.

    Args:
        rows: of the tokens, [B * T, ...].
        window: the rows of qkv before, [B, K - 1, C].
        state: [B, Hv, Dv, Dk].

    Returns:
        The gated and normalised outputs [B * T, Hv * Dv], and the states on the way.
    """
    n_seqs, n_heads, dv, dk = state.shape
    n_keys = config.n_key_heads
    by_token = (n_seqs, n_tokens, -1)
    seen = np.concatenate([window, rows.qkv.reshape(by_token)], axis=1)
    total = seen[:, :n_tokens] * weights.taps[0]
    for tap in range(1, len(weights.taps)):
        total += seen[:, tap : tap + n_tokens] * weights.taps[tap]
    mixed = silu(total)
    both = mixed[..., : 2 * n_keys * dk].reshape(n_seqs, n_tokens, 2 * n_keys, dk)
    both = np.ascontiguousarray(both.swapaxes(1, 2))
    _normalise(both, 1.0)
    # Each key head as often as value heads read it: [B, Hv, T, Dk].
    q, k = (np.repeat(side, n_heads // n_keys, axis=1) for side in (both[:, :n_keys], both[:, n_keys:]))
    q *= np.float32(dk**-0.5)
    v = mixed[..., 2 * n_keys * dk :].reshape(n_seqs, n_tokens, n_heads, dv).swapaxes(1, 2)

    a, b = (side.reshape(by_token).swapaxes(1, 2) for side in (rows.a, rows.b))
    log_decay = weights.rate[:, None] * np.logaddexp(a + weights.dt_bias[:, None], np.float32(0.0))
    total = np.cumsum(log_decay, axis=-1)  # [B, Hv, T]
    beta = (1.0 / one_plus_exp_minus(b, np.empty_like(b)))[..., None]
    since_start = np.exp(total)[..., None]
    decay = total[..., :, None] - total[..., None, :]
    decay = np.exp(np.where(np.tri(n_tokens, dtype=bool), decay, np.float32(-np.inf)))
    kt, turned = k.swapaxes(-1, -2), state.swapaxes(-1, -2)
    errors = beta * (v - since_start * (k @ turned))
    if n_tokens > 1:
        unit = np.tril(beta * (k @ kt) * decay, -1) + np.eye(n_tokens, dtype=np.float32)
        errors = np.linalg.solve(unit, errors)
    out = since_start * (q @ turned) + ((q @ kt) * decay) @ errors

    out /= np.sqrt(np.vecdot(out, out) / np.float32(dv) + np.float32(weights.eps))[..., None]
    out *= weights.norm
    gated = silu(rows.z)
    gated *= out.swapaxes(1, 2).reshape(gated.shape)
    return gated, CpuTrail(seen, state, total, errors, k)


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
            _normalise(q, dk**-0.5)
            _normalise(k, 1.0)
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


def _normalise(rows: Array, scale: float) -> None:
    """Give every row the length ``scale``, in place."""
    rows *= (np.float32(scale) / np.sqrt(np.vecdot(rows, rows) + np.float32(_NORM_EPS)))[..., None]


def _whole_chunks(n_tokens: int) -> int:
    return -(-n_tokens // CHUNK) * CHUNK
