"""The gated delta rule by mlx-lm's Metal kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_kernel

GROUP = 32  # of numbers of a key that the kernel reads together


class MetalKernel:
    """mlx-lm's Metal kernel, called once for each stretch between captures.

    The kernel walks over the tokens and hands out only the last state; the projections around it
    still see the whole part.
    """

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
        n_tokens = k.shape[0]
        ends = [*capture_at] if capture_at and capture_at[-1] == n_tokens else [*capture_at, n_tokens]
        outs, states, start = [], [state[None]], 0
        for end in ends:
            part = (x[None, start:end] for x in (q, k, v, log_decay, beta))
            out, matrix = _metal(part, states[-1])
            outs.append(out.squeeze(0))
            states.append(matrix)
            start = end
        out = mx.concatenate(outs) if len(outs) > 1 else outs[0]
        return out, states[-1].squeeze(0), [matrix.squeeze(0) for matrix in states[1 : len(capture_at) + 1]]

    def one(
        self, q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        out, state = _metal((x[:, None] for x in (q, k, v, log_decay, beta)), state)
        return out[:, 0], state


def _metal(inputs: Iterable[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """q, k, v, log decay and beta as [B, T, ...] through mlx-lm's kernel (its decay is linear)."""
    q, k, v, log_decay, beta = inputs
    out, state = gated_delta_kernel(q.astype(v.dtype), k.astype(v.dtype), v, mx.exp(log_decay), beta, state)
    return out, state
