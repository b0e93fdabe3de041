"""The gated delta rule by mlx-lm's Metal kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_kernel

from model.devices.metal.few_tokens import agrees, few_tokens

GROUP = 32  # of numbers of a key that the kernel reads together


class MetalKernel:
    """mlx-lm's Metal kernel, called once for each stretch between captures; of a few tokens with several
    states, a kernel of our own where it agrees with that.

    mlx-lm's walks over the tokens and hands out only the last state; the projections around it still see
    the whole part.
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
        ends = sorted({*capture_at, k.shape[0]})
        out, states = self.stretches(
            q[None], k[None], v[None], log_decay[None], beta[None], state[None], ends
        )
        *_, last = states
        return out.squeeze(0), last.squeeze(0), [m.squeeze(0) for m in states[: len(capture_at)]]

    def one(
        self, q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        out, state = _metal((x[:, None] for x in (q, k, v, log_decay, beta)), state)
        return out[:, 0], state

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
        if len(capture_at) > 1 and agrees(v.dtype, k.shape[-1], v.shape[-1]):
            return few_tokens(q, k, v, log_decay, beta, state, capture_at)
        return self.stretches(q, k, v, log_decay, beta, state, capture_at)

    def stretches(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        log_decay: mx.array,
        beta: mx.array,
        state: mx.array,
        capture_at: Sequence[int],
    ) -> tuple[mx.array, list[mx.array]]:
        """:meth:`few` by one launch for each state that is wanted, the last one's among them."""
        outs, states, start = [], [state], 0
        for end in capture_at:
            part = (x[:, start:end] for x in (q, k, v, log_decay, beta))
            out, matrix = _metal(part, states[-1])
            outs.append(out)
            states.append(matrix)
            start = end
        return mx.concatenate(outs, axis=1) if len(outs) > 1 else outs[0], states[1:]


def _metal(inputs: Iterable[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """q, k, v, log decay and beta as [B, T, ...] through mlx-lm's kernel (its decay is linear)."""
    q, k, v, log_decay, beta = inputs
    out, state = gated_delta_kernel(q.astype(v.dtype), k.astype(v.dtype), v, mx.exp(log_decay), beta, state)
    return out, state
