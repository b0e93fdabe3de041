"""Which implementation of the delta rule a device runs: both sides have the same signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_kernel

from model.backend import BackendKind
from model.checkpoint.config import ModelConfig
from model.layers.elementwise import Unary
from model.layers.gdn import chunked_delta_rule, delta_rule_step


class DeltaRule(Protocol):
    """How one GDN layer advances; arguments as in :mod:`model.layers.gdn`."""

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


class Chunked:
    """Array operations throughout."""

    def __init__(self, exp: Unary) -> None:
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


def delta_rule_for(kind: BackendKind, config: ModelConfig, exp: Unary) -> DeltaRule:
    """The implementation for a device and the shapes of a model."""
    if kind == "metal" and config.key_head_dim % 32 == 0:  # mlx-lm's kernel reads keys in groups of 32
        return MetalKernel()
    return Chunked(exp)


def _metal(inputs: Iterable[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """q, k, v, log decay and beta as [B, T, ...] through mlx-lm's kernel (its decay is linear)."""
    q, k, v, log_decay, beta = inputs
    out, state = gated_delta_kernel(q.astype(v.dtype), k.astype(v.dtype), v, mx.exp(log_decay), beta, state)
    return out, state
