"""The gated delta rule token by token in float64, and random input for it."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass
class Inputs:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    log_decay: np.ndarray
    beta: np.ndarray
    state: np.ndarray

    def arrays(self) -> list[mx.array]:
        return [mx.array(x.astype(np.float32)) for x in vars(self).values()]


def inputs(n: int, hk: int = 2, hv: int = 4, dk: int = 32, dv: int = 48, likeness: float = 0.0) -> Inputs:
    """Random inputs; ``likeness`` near 1 makes all keys point the same way, as repeated text does."""
    random = np.random.default_rng(n)
    common = random.standard_normal((1, hk, dk))
    k = likeness * common + (1 - likeness) * random.standard_normal((n, hk, dk))
    q = random.standard_normal((n, hk, dk))
    return Inputs(
        q=q / np.linalg.norm(q, axis=-1, keepdims=True) * dk**-0.5,
        k=k / np.linalg.norm(k, axis=-1, keepdims=True),
        v=random.standard_normal((n, hv, dv)),
        log_decay=-random.exponential(0.02 if likeness else 0.5, (n, hv)),
        beta=random.uniform(0.9 if likeness else 0.0, 1.0, (n, hv)),
        state=random.standard_normal((hv, dv, dk)),
    )


def recurrence(x: Inputs) -> tuple[np.ndarray, list[np.ndarray]]:
    """Outputs [T, Hv, Dv] and the state after every token, in float64."""
    repeat = x.v.shape[1] // x.k.shape[1]
    state, outs, states = x.state.astype(np.float64), [], []
    for t in range(len(x.k)):
        q, k = np.repeat(x.q[t], repeat, 0), np.repeat(x.k[t], repeat, 0)
        state = np.exp(x.log_decay[t])[:, None, None] * state
        error = x.beta[t][:, None] * (x.v[t] - np.einsum("hvk,hk->hv", state, k))
        state = state + error[:, :, None] * k[:, None, :]
        outs.append(np.einsum("hvk,hk->hv", state, q))
        states.append(state)
    return np.stack(outs), states
