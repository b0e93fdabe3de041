"""One GDN layer: projections, short convolution, delta rule, gated norm, output projection.

The modules are mlx-lm's (plain, quantised or with LoRA); how they are put together is ours, so that
the state is explicit and available at any position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.layers.ops import Ops, Projection
from model.layers.ragged import Ragged
from model.state import Recurrent

_NORM_EPS = 1e-6  # on the sum of squares of a query or a key


class Trail(Protocol):
    """What a GDN layer passed through while T tokens were fed to each of B sequences."""

    def at(self, n_tokens: Sequence[int]) -> Recurrent:
        """The states [B, ...] after the given numbers of tokens, one for each sequence and among those
        announced, in buffers of their own."""


@dataclass(frozen=True, slots=True)
class StateTrail:
    """A :class:`Trail` of states that were written down.

    Attributes:
        rows: what entered the convolution, the window before it in front, [B, K - 1 + T, C].
        matrices: by token count, [B, Hv, Dv, Dk].
    """

    rows: mx.array
    matrices: Mapping[int, mx.array]

    def at(self, n_tokens: Sequence[int]) -> Recurrent:
        n_kept = self.rows.shape[1] - max(self.matrices)
        if len(set(n_tokens)) == 1:
            n = n_tokens[0]
            return Recurrent(mx.contiguous(self.rows[:, n : n + n_kept]), mx.contiguous(self.matrices[n]))
        windows = [self.rows[i : i + 1, n : n + n_kept] for i, n in enumerate(n_tokens)]
        matrices = [self.matrices[n][i : i + 1] for i, n in enumerate(n_tokens)]
        return Recurrent(mx.concatenate(windows), mx.concatenate(matrices))


class Gdn:
    """Reads weights from ``block``; holds nothing of any sequence."""

    def __init__(self, block: nn.Module, config: ModelConfig, ops: Ops) -> None:
        self._block = block
        self._config = config
        self._ops = ops
        self._inputs = Projection(block, ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"], ops.apply)
        # One factor for each head of [q | k]: Dk^-1 takes the sum back to the mean and scales q.
        scale = [1.0 / config.key_head_dim] * config.n_key_heads
        scale += [config.key_head_dim**-0.5] * config.n_key_heads
        # In float32: bfloat16 would round Dk^-1/2, and so every key's length, by the same 0.2 %.
        self._key_scale = mx.array(scale, mx.float32)[:, None]
        self._convolve = ops.convolve(block.conv1d)
        self._norm_weight = block.norm.weight.astype(mx.float32)
        self._decay_rate = -mx.exp(block.A_log.astype(mx.float32))  # [Hv]

    def prefill(
        self, x: mx.array, past: Recurrent, capture_at: Sequence[int]
    ) -> tuple[mx.array, Recurrent, list[Recurrent]]:
        """Feed T tokens of one sequence.

        Args:
            x: [1, T, H].
            capture_at: token counts in 1..T after which the state is wanted, ascending.

        Returns:
            Outputs [1, T, H], the state after T tokens, the states asked for.
        """
        qkv, z, b, a = self._inputs(x)
        out, end, captured = self._walk(qkv, b, a, past, capture_at)
        return self._project(out, z), end, captured

    def _walk(
        self, qkv: mx.array, b: mx.array, a: mx.array, past: Recurrent, capture_at: Sequence[int]
    ) -> tuple[mx.array, Recurrent, list[Recurrent]]:
        """:meth:`prefill` between the projections: outputs [1, T, Hv, Dv] and the states."""
        n_tokens, n_kept = qkv.shape[1], self._config.conv_kernel - 1
        rows = mx.concatenate([past.window, qkv], axis=1)  # [1, K - 1 + T, C]
        q, k, v = self._heads(self._ops.silu(self._convolve(rows)))
        log_decay, beta = self._gates(a, b)
        # squeeze, not [0]: MLX gathers for an index, which copies.
        q, k, v, log_decay, beta, start = (x.squeeze(0) for x in (q, k, v, log_decay, beta, past.matrix))
        out, matrix, captured = self._ops.rule.many(q, k, v, log_decay, beta, start, capture_at)
        states = [
            Recurrent(rows[:, end : end + n_kept], m[None]).detached()
            for end, m in zip([*capture_at, n_tokens], [*captured, matrix], strict=True)
        ]
        return out[None], states[-1], states[:-1]

    def prefill_ragged(
        self, x: mx.array, pasts: Sequence[Recurrent], ragged: Ragged
    ) -> tuple[mx.array, list[Recurrent], list[list[Recurrent]]]:
        """Feed the tokens of several sequences, laid end to end.

        Args:
            x: [1, N, H].
            pasts: the state of each sequence.

        Returns:
            Outputs [1, N, H]; of each sequence the state after its tokens, and the states asked for.
        """
        qkv, z, b, a = self._inputs(x)
        outs, ends, captured = [], [], []
        for past, span, capture_at in zip(pasts, ragged.spans, ragged.capture_at, strict=True):
            out, end, own = self._walk(qkv[:, span], b[:, span], a[:, span], past, capture_at)
            outs.append(out)
            ends.append(end)
            captured.append(own)
        return self._project(mx.concatenate(outs, axis=1), z), ends, captured

    def step(self, x: mx.array, past: Recurrent) -> tuple[mx.array, Recurrent]:
        """Feed one token to each of B sequences: x [B, 1, H] to outputs [B, 1, H] and the states."""
        qkv, z, b, a = self._inputs(x)
        rows = mx.concatenate([past.window, qkv], axis=1)  # [B, K, C]
        q, k, v = self._heads(self._ops.silu(self._convolve(rows)))
        log_decay, beta = self._gates(a, b)
        out, matrix = self._ops.rule.one(q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], beta[:, 0], past.matrix)
        return self._project(out[:, None], z), Recurrent(rows[:, 1:], matrix)

    def extend(self, x: mx.array, past: Recurrent, capture_at: Sequence[int]) -> tuple[mx.array, Trail]:
        """Feed T tokens to each of B sequences, of which some may be taken back.

        Args:
            x: [B, T, H].
            capture_at: token counts in 1..T after which the states may be wanted, ascending.

        Returns:
            Outputs [B, T, H], and the states on the way.
        """
        qkv, z, b, a = self._inputs(x)
        rows = mx.concatenate([past.window, qkv], axis=1)  # [B, K - 1 + T, C]
        q, k, v = self._heads(self._ops.silu(self._convolve(rows)))
        out, matrices = self._ops.rule.few(q, k, v, *self._gates(a, b), past.matrix, capture_at)
        return self._project(out, z), StateTrail(rows, dict(zip(capture_at, matrices, strict=True)))

    def _heads(self, rows: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """[B, T, C] to q, k [B, T, Hk, Dk], float32, normalised, q scaled; and v [B, T, Hv, Dv]."""
        c = self._config
        keys, values = mx.split(rows, [2 * c.n_key_heads * c.key_head_dim], axis=-1)
        keys = keys.reshape(*keys.shape[:2], 2 * c.n_key_heads, c.key_head_dim)
        # rms_norm divides by the root of the mean, an L2 norm by the root of the sum.
        normed = mx.fast.rms_norm(keys, None, _NORM_EPS / c.key_head_dim) * self._key_scale
        q, k = mx.split(normed, 2, axis=2)
        return q, k, values.reshape(*values.shape[:2], c.n_value_heads, c.value_head_dim)

    def _gates(self, a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
        """The log decay and the writing strength, both [B, T, Hv] in float32."""
        return _gates(a, b, self._block.dt_bias, self._decay_rate)

    def _project(self, out: mx.array, z: mx.array) -> mx.array:
        """Gated norm per head and the output projection: [B, T, Hv, Dv] to [B, T, H]."""
        gate = self._ops.silu(z.astype(mx.float32))
        normed = mx.fast.rms_norm(out.astype(mx.float32), self._norm_weight, self._block.norm.eps)
        mixed = (gate * normed.reshape(gate.shape)).astype(z.dtype)
        return self._ops.apply(self._block.out_proj, mixed)


@mx.compile
def _gates(a: mx.array, b: mx.array, dt_bias: mx.array, rate: mx.array) -> tuple[mx.array, mx.array]:
    return rate * mx.logaddexp(a.astype(mx.float32) + dt_bias, 0.0), mx.sigmoid(b.astype(mx.float32))
