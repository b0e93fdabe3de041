"""Every implementation of the delta rule against the recurrence, token by token, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from model.backend import detect
from model.devices.cpu import operations
from model.devices.cpu.gdn_prompt import CHUNK, delta_rule
from model.devices.metal.delta_rule import MetalKernel
from model.layers.delta_rule import Chunked, DeltaRule, unit_lower_inverse
from tests.fakes.recurrence import inputs, recurrence


class InNumpy(Chunked):
    """The rule of a long prompt on the CPU, which takes heads first and whole chunks."""

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
        n = len(k)
        padding = -n % CHUNK
        rows = [np.pad(x, [(0, padding), *[(0, 0)] * (x.ndim - 1)]) for x in (q, k, v, log_decay, beta)]
        last = np.array(state)
        captured = {position: np.empty_like(last) for position in capture_at}
        out = delta_rule(*(np.ascontiguousarray(x.swapaxes(0, 1)) for x in rows), last, captured)
        return mx.array(out[:, :n].swapaxes(0, 1)), mx.array(last), [mx.array(x) for x in captured.values()]


def rules() -> dict[str, DeltaRule]:
    """Every implementation this machine can run."""
    kind = detect().kind
    found: dict[str, DeltaRule] = {
        "array operations": Chunked(mx.exp),
        "polynomial exponential": Chunked(operations.exp),
        "NumPy": InNumpy(mx.exp),
    }
    if kind == "metal":
        found["Metal kernel"] = MetalKernel()
    return found


@pytest.fixture(params=rules())
def rule(request: pytest.FixtureRequest) -> DeltaRule:
    return rules()[request.param]


@pytest.mark.parametrize("n", [1, 2, 16, 17, 33, 48, 63, 64, 65, 127, 128, 200])
@pytest.mark.parametrize("heads", [(1, 1), (2, 4), (2, 2), (1, 3)])
def test_many_tokens_at_once_give_what_the_recurrence_gives(
    n: int, heads: tuple[int, int], rule: DeltaRule
) -> None:
    x = inputs(n, *heads)
    wanted, states = recurrence(x)
    out, state, captured = rule.many(*x.arrays(), range(1, n + 1))
    assert np.allclose(out, wanted, atol=2e-5)
    assert np.allclose(state, states[-1], atol=2e-5)
    for found, exact in zip(captured, states, strict=True):
        assert np.allclose(found, exact, atol=2e-5)


@pytest.mark.parametrize("dims", [(32, 16), (64, 64), (128, 128), (96, 32)])
def test_heads_of_any_width_give_what_the_recurrence_gives(dims: tuple[int, int], rule: DeltaRule) -> None:
    x = inputs(150, 2, 4, *dims)
    wanted, states = recurrence(x)
    out, state, captured = rule.many(*x.arrays(), (64, 100))
    assert np.allclose(out, wanted, atol=2e-5)
    assert np.allclose(state, states[-1], atol=2e-5)
    assert np.allclose(captured[1], states[99], atol=2e-5)


@pytest.mark.parametrize("likeness", [0.5, 0.9, 0.99, 0.9999])
def test_keys_that_resemble_each_other_cost_no_digits(likeness: float, rule: DeltaRule) -> None:
    x = inputs(256, likeness=likeness)
    wanted, states = recurrence(x)
    out, state, _ = rule.many(*x.arrays(), ())
    assert np.abs(np.array(out) - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert np.abs(np.array(state) - states[-1]).max() < 1e-4 * np.abs(states[-1]).max()


def test_decay_to_nothing_neither_overflows_nor_turns_into_nan(rule: DeltaRule) -> None:
    x = inputs(128)
    x.log_decay[:] = -80.0
    wanted, _ = recurrence(x)
    out, _, _ = rule.many(*x.arrays(), ())
    assert np.allclose(out, wanted, atol=2e-5)


def test_steps_of_several_sequences_give_what_the_recurrence_gives(rule: DeltaRule) -> None:
    sequences = [inputs(20), inputs(21), inputs(22)]
    wanted = [recurrence(x) for x in sequences]
    state = mx.stack([x.arrays()[-1] for x in sequences])
    for t in range(20):
        rows = [
            mx.stack(side) for side in zip(*([a[t] for a in x.arrays()[:-1]] for x in sequences), strict=True)
        ]
        out, state = rule.one(*rows, state)
        assert np.allclose(out, np.stack([outs[t] for outs, _ in wanted]), atol=2e-5)
    assert np.allclose(state, np.stack([states[19] for _, states in wanted]), atol=2e-5)


def test_a_few_tokens_of_several_sequences_give_what_the_recurrence_gives(rule: DeltaRule) -> None:
    sequences = [inputs(n, likeness=0.5) for n in (20, 21, 22)]
    wanted = [recurrence(x) for x in sequences]
    rows = [
        mx.stack(side) for side in zip(*([a[:20] for a in x.arrays()[:-1]] for x in sequences), strict=True)
    ]
    state = mx.stack([x.arrays()[-1] for x in sequences])
    out, captured = rule.few(*rows, state, (1, 7, 20))
    assert np.allclose(out, np.stack([outs[:20] for outs, _ in wanted]), atol=2e-5)
    for n, found in zip((1, 7, 20), captured, strict=True):
        assert np.allclose(found, np.stack([states[n - 1] for _, states in wanted]), atol=2e-5)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_the_inverse_holds_where_a_power_series_would_lose_every_digit(size: int) -> None:
    a = np.tril(np.full((3, size, size), 0.95), -1)
    exact = np.linalg.inv(np.eye(size) + a)
    assert np.abs(np.array(unit_lower_inverse(mx.array(a.astype(np.float32)))) - exact).max() < 1e-5
