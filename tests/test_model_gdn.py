"""The chunkwise delta rule against the recurrence, token by token, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from model.gdn import chunked_delta_rule, delta_rule_step, unit_lower_inverse


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


def inputs(n: int, hk: int = 2, hv: int = 4, dk: int = 16, dv: int = 24, likeness: float = 0.0) -> Inputs:
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


@pytest.mark.parametrize("n", [1, 2, 16, 17, 33, 48, 63, 64, 65, 127, 128, 200])
@pytest.mark.parametrize("heads", [(1, 1), (2, 4), (2, 2), (1, 3)])
def test_chunks_give_what_the_recurrence_gives(n: int, heads: tuple[int, int]) -> None:
    x = inputs(n, *heads)
    wanted, states = recurrence(x)
    captures = range(1, n + 1)
    out, state, captured = chunked_delta_rule(*x.arrays(), captures)
    assert np.allclose(out, wanted, atol=2e-5)
    assert np.allclose(state, states[-1], atol=2e-5)
    for found, exact in zip(captured, states, strict=True):
        assert np.allclose(found, exact, atol=2e-5)


@pytest.mark.parametrize("likeness", [0.5, 0.9, 0.99, 0.9999])
def test_keys_that_resemble_each_other_cost_no_digits(likeness: float) -> None:
    x = inputs(256, likeness=likeness)
    wanted, states = recurrence(x)
    out, state, _ = chunked_delta_rule(*x.arrays())
    assert np.abs(np.array(out) - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert np.abs(np.array(state) - states[-1]).max() < 1e-4 * np.abs(states[-1]).max()


def test_decay_to_nothing_neither_overflows_nor_turns_into_nan() -> None:
    x = inputs(128)
    x.log_decay[:] = -80.0
    wanted, _ = recurrence(x)
    out, _, _ = chunked_delta_rule(*x.arrays())
    assert np.allclose(out, wanted, atol=2e-5)


def test_steps_give_what_the_recurrence_gives() -> None:
    x = inputs(20)
    wanted, states = recurrence(x)
    q, k, v, log_decay, beta, state = x.arrays()
    state = state[None]
    for t in range(20):
        out, state = delta_rule_step(*(a[t][None] for a in (q, k, v, log_decay, beta)), state)
        assert np.allclose(out[0], wanted[t], atol=2e-5)
    assert np.allclose(state[0], states[-1], atol=2e-5)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_the_inverse_holds_where_a_power_series_would_lose_every_digit(size: int) -> None:
    a = np.tril(np.full((3, size, size), 0.95), -1)
    exact = np.linalg.inv(np.eye(size) + a)
    assert np.abs(np.array(unit_lower_inverse(mx.array(a.astype(np.float32)))) - exact).max() < 1e-5
