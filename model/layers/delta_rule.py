"""The gated delta rule over many tokens at once, in chunks of 64, with states from anywhere inside.

Per value head, with S [Dv, Dk] and the decay g in log space (Yang et al., "Gated Delta Networks",
2024; the chunkwise form is the WY representation of Yang et al., "Parallelizing Linear Transformers
with the Delta Rule", 2024)::

    S <- exp(g) S;  S <- S + beta (v - S k) k^T;  o = S q

Inside a chunk, with G = cumsum(g) and D_ij = exp(G_i - G_j) for i >= j::

    A = strictly lower(beta_i (k_i . k_j) D_ij);  T = (I + A)^-1
    U = T (beta V);  W = T (beta exp(G) K)
    V' = U - W S^T                            serial over chunks, with
    S <- exp(G_C) S + V'^T (exp(G_C - G) K)
    O = exp(G) Q S^T + (Q K^T * D) V'

Row i of V' depends on rows up to i only. So the state after r tokens of a chunk needs no second pass:
it is the same update with the first r rows and with G_r in the place of G_C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

CHUNK = 64
_BLOCK = 16
_SIZES = (16, 32, CHUNK)  # a short part is read in a smaller chunk
_FEWEST_AT_ONCE = 4  # tokens of one sequence from which on a chunk takes fewer operations than single steps


class DeltaRule(Protocol):
    """How one GDN layer advances; arguments as of :func:`chunked_delta_rule` and :func:`delta_rule_step`."""

    def many(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        log_decay: mx.array,
        beta: mx.array,
        state: mx.array,
        capture_at: Sequence[int],
    ) -> tuple[mx.array, mx.array, list[mx.array]]:
        """T tokens of one sequence, with the states wanted on the way."""

    def one(
        self, q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        """One token of each of B sequences."""

    def few(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        log_decay: mx.array,
        beta: mx.array,
        state: mx.array,
        capture_at: Sequence[int],
    ) -> tuple[mx.array, list[mx.array]]:
        """A few tokens of each of B sequences, [B, T, ...]: outputs [B, T, Hv, Dv] and the states
        wanted, the last one among them."""


class Chunked:
    """The rule in MLX array operations."""

    def __init__(self, exp: Callable[[mx.array], mx.array] = mx.exp) -> None:
        self._exp = exp

    def many(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        log_decay: mx.array,
        beta: mx.array,
        state: mx.array,
        capture_at: Sequence[int],
    ) -> tuple[mx.array, mx.array, list[mx.array]]:
        return chunked_delta_rule(q, k, v, log_decay, beta, state, capture_at, exp=self._exp)

    def one(
        self, q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        return delta_rule_step(q, k, v, log_decay, beta, state)

    def few(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        log_decay: mx.array,
        beta: mx.array,
        state: mx.array,
        capture_at: Sequence[int],
    ) -> tuple[mx.array, list[mx.array]]:
        if k.shape[0] == 1 and k.shape[1] >= _FEWEST_AT_ONCE:
            q, k, v, log_decay, beta, state = (x.squeeze(0) for x in (q, k, v, log_decay, beta, state))
            out, _, found = self.many(q, k, v, log_decay, beta, state, capture_at)
            return out[None], [x[None] for x in found]
        outs, captured = [], []
        for t in range(k.shape[1]):
            out, state = self.one(q[:, t], k[:, t], v[:, t], log_decay[:, t], beta[:, t], state)
            outs.append(out)
            if t + 1 in capture_at:
                captured.append(state)
        return mx.stack(outs, axis=1), captured


def chunked_delta_rule(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_decay: mx.array,
    beta: mx.array,
    state: mx.array,
    capture_at: Sequence[int] = (),
    *,
    exp: Callable[[mx.array], mx.array] = mx.exp,
) -> tuple[mx.array, mx.array, list[mx.array]]:
    """Feed T tokens of one sequence.

    Args:
        q, k: [T, Hk, Dk], normalised, q scaled.
        v: [T, Hv, Dv]; Hv is a multiple of Hk, value head h reads key head h // (Hv / Hk).
        log_decay, beta: [T, Hv], float32.
        state: [Hv, Dv, Dk], float32.
        capture_at: token counts in 1..T after which the state is wanted, ascending.
        exp: the device's exponential.

    Returns:
        Outputs [T, Hv, Dv] in the dtype of ``v``, the state after T tokens, the states asked for.
    """
    n_tokens, n_key_heads, _ = k.shape
    n_value_heads = v.shape[1]
    size = next(size for size in _SIZES if size >= n_tokens or size == CHUNK)
    n_chunks = -(-n_tokens // size)
    grouped = (n_key_heads, n_value_heads // n_key_heads)
    q, k = (_chunks(x.astype(mx.float32), n_chunks, size)[:, None] for x in (q, k))  # [Hk, 1, N, C, Dk]
    values = _chunks(v.astype(mx.float32), n_chunks, size)  # [Hv, N, C, Dv]
    values = values.reshape(*grouped, *values.shape[1:])  # [Hk, R, N, C, Dv]
    beta = _chunks(beta[..., None], n_chunks, size).reshape(*grouped, n_chunks, size, 1)
    total = mx.cumsum(
        _chunks(log_decay[..., None], n_chunks, size).reshape(*grouped, n_chunks, size), axis=-1
    )
    decay = _decay_matrix(total, exp)  # [Hk, R, N, C, C]

    kt = k.swapaxes(-1, -2)
    inverse = unit_lower_inverse((k @ kt) * beta * (decay * mx.tri(size, k=-1)))
    since_start = exp(total)[..., None]
    to_end = exp(total[..., -1:] - total)[..., None]
    by_head = (n_value_heads, n_chunks, size, -1)
    starts, news, last = carry_chunks(
        (inverse @ (beta * values)).reshape(by_head),
        (inverse @ ((beta * since_start) * k)).reshape(by_head),
        (to_end * k).reshape(by_head),
        since_start[..., -1, 0].reshape(n_value_heads, n_chunks),
        state,
    )
    news = news.reshape(values.shape)
    starts = starts.reshape(*grouped, *starts.shape[1:])  # [Hk, R, N, Dv, Dk]
    out = (since_start * q) @ starts.swapaxes(-1, -2) + ((q @ kt) * decay) @ news
    out = out.reshape(n_value_heads, n_chunks * size, -1)[:, :n_tokens].swapaxes(0, 1)

    captured = []
    for position in capture_at:
        n, r = divmod(position - 1, size)
        weight = exp(total[:, :, n, r : r + 1] - total[:, :, n, : r + 1])[..., None]
        added = news[:, :, n, : r + 1].swapaxes(-1, -2) @ (weight * k[:, :, n, : r + 1])
        captured.append((since_start[:, :, n, r, :, None] * starts[:, :, n] + added).reshape(state.shape))
    return out.astype(v.dtype), last, captured


def delta_rule_step(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Feed one token to each of B sequences.

    Args:
        q, k: [B, Hk, Dk], normalised, q scaled; v: [B, Hv, Dv]; log_decay, beta: [B, Hv], float32.
        state: [B, Hv, Dv, Dk], float32.

    Returns:
        Outputs [B, Hv, Dv], float32, and the states.
    """
    n_seqs, n_key_heads, dk = k.shape
    grouped = (n_seqs, n_key_heads, v.shape[1] // n_key_heads)
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    # One product with k and q at once. The new state need not be read again for the output:
    # (g S + error k^T) q = g (S q) + error (k . q).
    seen = state.reshape(n_seqs, n_key_heads, -1, dk) @ mx.stack([k, q], axis=-1)
    seen = seen.reshape(*v.shape, 2)
    decay = mx.exp(log_decay)[..., None]  # [B, Hv, 1]
    error = beta[..., None] * (v - decay * seen[..., 0])  # [B, Hv, Dv]
    agreement = mx.broadcast_to((k * q).sum(-1)[:, :, None], grouped).reshape(*decay.shape)
    out = decay * seen[..., 1] + error * agreement
    written = error.reshape(*grouped, -1, 1) * k[:, :, None, None]  # [B, Hk, R, Dv, Dk]
    return out, decay[..., None] * state + written.reshape(state.shape)


def unit_lower_inverse(a: mx.array) -> mx.array:
    """(I + A)^-1 for strictly lower triangular A [..., C, C], C one of 16, 32, 64.

    Forward substitution in all 16 x 16 diagonal blocks at once, then merges of neighbours. A power
    series would need fewer steps, but keys that resemble each other (repeated text) make its terms
    grow to thousands and cancel: no digit is left.
    """
    *batch, size, _ = a.shape
    n_blocks = size // _BLOCK
    blocks = a.reshape(*batch, n_blocks, _BLOCK, n_blocks, _BLOCK)
    diagonal = mx.stack([blocks[..., b, :, b, :] for b in range(n_blocks)], axis=-3)
    inverse = _substitute(diagonal.reshape(-1, _BLOCK, _BLOCK)).reshape(diagonal.shape)
    while inverse.shape[-1] < size:
        inverse = _merge_neighbours(a, inverse)
    return inverse.reshape(a.shape)


@mx.compile
def _substitute(a: mx.array) -> mx.array:
    """The inverses of n blocks [n, 16, 16]; the blocks lie innermost so that every step is one long row."""
    a = mx.contiguous(a.transpose(1, 2, 0))  # [16, 16, n]
    rest = mx.broadcast_to(mx.eye(_BLOCK)[:, :, None], a.shape)
    rows = []
    for j in range(_BLOCK):
        rows.append(rest[0])
        rest = rest[1:] - a[j + 1 :, j, None] * rest[0]
    return mx.stack(rows).transpose(2, 0, 1)


def _merge_neighbours(a: mx.array, parts: mx.array) -> mx.array:
    """Inverses over diagonal blocks of twice the size, from those [..., m, s, s] over m blocks of A."""
    *batch, m, s, _ = parts.shape
    blocks = a.reshape(*batch, m, s, m, s)
    below = mx.stack([blocks[..., i + 1, :, i, :] for i in range(0, m, 2)], axis=-3)  # [..., m / 2, s, s]
    upper, lower = parts[..., 0::2, :, :], parts[..., 1::2, :, :]
    corner = lower @ below @ upper
    top = mx.concatenate([upper, mx.zeros_like(upper)], axis=-1)
    return mx.concatenate([top, mx.concatenate([-corner, lower], axis=-1)], axis=-2)


def carry_chunks(
    u: mx.array, w: mx.array, to_end: mx.array, decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """The serial part, chunk after chunk.

    Args:
        u: [Hv, N, C, Dv]; w, to_end (exp(G_C - G) K): [Hv, N, C, Dk]; decay (exp(G_C)): [Hv, N].
        state: [Hv, Dv, Dk].

    Returns:
        The states at the chunks' starts [Hv, N, Dv, Dk], V' [Hv, N, C, Dv], the last state.
    """
    starts, news = [], []
    for n in range(u.shape[1]):
        starts.append(state)
        news.append(u[:, n] - w[:, n] @ state.swapaxes(-1, -2))
        state = decay[:, n, None, None] * state + news[n].swapaxes(-1, -2) @ to_end[:, n]
    return mx.stack(starts, axis=1), mx.stack(news, axis=1), state


def _decay_matrix(total: mx.array, exp: Callable[[mx.array], mx.array]) -> mx.array:
    """exp(G_i - G_j) for i >= j, else 0. Cut off at 0 before the exp: the upper half would overflow."""
    difference = mx.minimum(total[..., :, None] - total[..., None, :], 0.0)
    size = total.shape[-1]
    return exp(difference) * mx.tri(size)


def _chunks(x: mx.array, n_chunks: int, size: int) -> mx.array:
    """[T, H, D] to [H, N, C, D]; the padding is zero, which neither decays nor writes."""
    missing = n_chunks * size - x.shape[0]
    if missing:
        x = mx.pad(x, [(0, missing), (0, 0), (0, 0)])
    # Laid out anew once: every product and broadcast below would else copy it again.
    return mx.contiguous(x.reshape(n_chunks, size, x.shape[1], x.shape[2]).transpose(2, 0, 1, 3))
