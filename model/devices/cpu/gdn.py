"""A GDN layer on the CPU in NumPy: prompts on all cores, and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from model.checkpoint.config import ModelConfig
from model.devices.cpu.gdn_prompt import MixWeights, Rows, mix, window_after
from model.devices.cpu.rows import (
    MANY_ROWS,
    Array,
    Crew,
    StepInputs,
    can_multiply,
    is_plain,
    matrix,
    multiply,
    normalise,
    one_plus_exp_minus,
    silu,
    step_multiply,
)
from model.layers.gdn import Gdn, StateTrail, Trail
from model.layers.ops import Ops
from model.state import Recurrent

_FEW_STATES = 4  # of many tokens, for which it pays to take them on the way
# A whole chunk on so many takes as long as the tokens alone take on one of them: 0.9 ms against 0.4 for 32 of
# the demo model's, 0.9 against 0.6 for 64.
_FEW_CORES = 2
_BLOCK = 16  # errors that are solved for one by one


class CpuGdn(Gdn):
    """See :class:`Gdn`, which takes short prompts and layers of other kinds (LoRA).

    Attributes:
        steps_in_numpy: whether :meth:`step_rows` may be called.
    """

    def __init__(self, block: nn.Module, config: ModelConfig, ops: Ops, crew: Crew) -> None:
        super().__init__(block, config, ops)
        self._crew = crew
        self._shares_chunks = crew.size > _FEW_CORES
        self._can_multiply = can_multiply(*self._inputs.layers, block.out_proj)
        self.steps_in_numpy = all(map(is_plain, (*self._inputs.layers, block.out_proj)))
        if self.steps_in_numpy:
            self._step_inputs = StepInputs(self._inputs, crew)
            self._step_output = matrix(block.out_proj)
        by_tap = mx.contiguous(block.conv1d.weight.squeeze(-1).T)  # [K, C]
        read = (by_tap, self._decay_rate, block.dt_bias, block.norm.weight)
        taps, rate, bias, norm = (np.asarray(x.astype(mx.float32)) for x in read)
        self._weights = MixWeights(taps, rate, bias, norm, block.norm.eps)

    def prefill(
        self, x: mx.array, past: Recurrent, capture_at: Sequence[int]
    ) -> tuple[mx.array, Recurrent, list[Recurrent]]:
        n_tokens = x.shape[1]
        if n_tokens < MANY_ROWS or not self._can_multiply:
            return super().prefill(x, past, capture_at)
        inputs = np.asarray(x)[0]
        rows = Rows(
            *self._inputs.split([multiply(inputs, matrix(p), self._crew) for p in self._inputs.layers])
        )
        window, state = np.asarray(past.window)[0], np.asarray(past.matrix)[0]
        mixed, last, captured = mix(rows, window, state, capture_at, self._weights, self._config, self._crew)
        out = multiply(mixed, matrix(self._block.out_proj), self._crew)
        states = [
            Recurrent(mx.array(window_after(window, rows.qkv, end))[None], mx.array(found)[None])
            for end, found in zip([*capture_at, n_tokens], [*captured, last], strict=True)
        ]
        return mx.array(out)[None], states[-1], states[:-1]

    def extend_rows(
        self, x: Array, past: Recurrent, n_tokens: int, capture_at: Sequence[int]
    ) -> tuple[Array, Trail]:
        """:meth:`extend` of rows [B * T, H]."""
        rows = Rows(*self._step_inputs(x))
        window, state = np.asarray(past.window), np.asarray(past.matrix)
        trail: Trail
        is_alone = n_tokens == len(x)
        if is_alone and n_tokens >= MANY_ROWS and len(capture_at) <= _FEW_STATES and self._shares_chunks:
            # As many as a prompt that all cores read.
            mixed, _, found = mix(
                rows, window[0], state[0], capture_at, self._weights, self._config, self._crew
            )
            seen = mx.concatenate([past.window, mx.array(rows.qkv)[None]], axis=1)
            matrices = {n: mx.array(one)[None] for n, one in zip(capture_at, found, strict=True)}
            trail = StateTrail(seen, matrices)
            return step_multiply(mixed, self._step_output, self._crew), trail
        mixed, trail = extend(rows, window, state, n_tokens, self._weights, self._config)
        return step_multiply(mixed, self._step_output, self._crew), trail

    def step_rows(self, x: Array, past: Recurrent) -> tuple[Array, Recurrent]:
        """:meth:`step` of rows [B, H]."""
        rows = Rows(*self._step_inputs(x))
        window, state = np.asarray(past.window), np.asarray(past.matrix)
        mixed, window, state = step(rows, window, state, self._weights, self._config)
        out = step_multiply(mixed, self._step_output, self._crew)
        return out, Recurrent(mx.array(window), mx.array(state))


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
    normalise(keys, 1.0)
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
    normalise(both, 1.0)
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
        _solve(beta * (k @ kt) * decay, errors)
    out = since_start * (q @ turned) + ((q @ kt) * decay) @ errors

    out /= np.sqrt(np.vecdot(out, out) / np.float32(dv) + np.float32(weights.eps))[..., None]
    out *= weights.norm
    gated = silu(rows.z)
    gated *= out.swapaxes(1, 2).reshape(gated.shape)
    return gated, CpuTrail(seen, state, total, errors, k)


def _solve(a: Array, x: Array) -> None:
    """Solve (I + A) X = B in place of B [..., T, m], A [..., T, T] read strictly below its diagonal; T is at
    most some tens.

    ``numpy.linalg.solve``, which factors A, takes two to five times as long for 16 heads.
    """
    n_tokens = a.shape[-1]
    for start in range(0, n_tokens, _BLOCK):
        end = min(start + _BLOCK, n_tokens)
        if start:
            x[..., start:end, :] -= a[..., start:end, :start] @ x[..., :start, :]
        for i in range(start + 1, end):
            x[..., i, :] -= np.vecmat(a[..., i, start:i], x[..., start:i, :])
