"""mlx-lm's Metal kernel, through our wrapper, against the recurrence in float64: its source is compiled for
the CPU and run there, simdgroups of 32 lanes in lockstep."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from model.devices.metal import few_tokens
from model.devices.metal.delta_rule import MetalKernel
from tests.fakes import metal_emulator
from tests.fakes.recurrence import inputs, recurrence

pytestmark = pytest.mark.skipif(not metal_emulator.is_available(), reason="no C++ compiler")

DIMS = {"generic": (32, 16), "several numbers a lane": (64, 8), "packed": (128, 16)}


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not mx.metal.is_available():
        metal_emulator.installed(monkeypatch)


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
@pytest.mark.parametrize("heads", [(1, 1), (2, 4)])
def test_a_prompt_with_captures_gives_what_the_recurrence_gives(
    dims: tuple[int, int], heads: tuple[int, int]
) -> None:
    x = inputs(24, *heads, *dims)
    wanted, states = recurrence(x)
    out, state, captured = MetalKernel().many(*x.arrays(), (1, 7, 24))
    assert np.allclose(out, wanted, atol=1e-5)
    assert np.allclose(state, states[-1], atol=1e-5)
    for n, found in zip((1, 7, 24), captured, strict=True):
        assert np.allclose(found, states[n - 1], atol=1e-5)


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
def test_in_float32_the_kernel_is_as_exact_as_the_format(dims: tuple[int, int]) -> None:
    x = inputs(24, 1, 2, *dims, likeness=0.9)
    wanted, states = recurrence(x)
    out, state, _ = MetalKernel().many(*x.arrays(), ())
    assert np.abs(np.array(out) - wanted).max() < 2e-6 * np.abs(wanted).max()
    assert np.abs(np.array(state) - states[-1]).max() < 2e-6 * np.abs(states[-1]).max()


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_steps_of_several_sequences_give_what_the_recurrence_gives(
    dims: tuple[int, int], dtype: mx.Dtype
) -> None:
    sequences = [inputs(n, 1, 2, *dims) for n in (5, 6, 7)]
    state = mx.stack([x.arrays()[-1] for x in sequences])
    tolerance = 1e-5 if dtype == mx.float32 else 0.05
    for t in range(5):
        sides = zip(*([a[t] for a in x.arrays()[:-1]] for x in sequences), strict=True)
        q, k, v, log_decay, beta = map(mx.stack, sides)
        out, state = MetalKernel().one(q, k, v.astype(dtype), log_decay, beta, state)
        assert out.dtype == dtype
        wanted = np.stack([recurrence(x)[0][t] for x in sequences])
        assert np.abs(np.array(out.astype(mx.float32)) - wanted).max() < tolerance * np.abs(wanted).max()
    assert state.dtype == mx.float32
    exact = np.stack([recurrence(x)[1][4] for x in sequences])
    assert np.abs(np.array(state) - exact).max() < tolerance * np.abs(exact).max()


def test_a_few_tokens_of_several_sequences_give_what_the_recurrence_gives() -> None:
    sequences = [inputs(n, 1, 2, 32, 16) for n in (9, 10)]
    sides = zip(*([a[:9] for a in x.arrays()[:-1]] for x in sequences), strict=True)
    state = mx.stack([x.arrays()[-1] for x in sequences])
    q, k, v, log_decay, beta = map(mx.stack, sides)
    out, captured = MetalKernel().few(q, k, v, log_decay, beta, state, (1, 4, 9))
    assert np.allclose(out, np.stack([recurrence(x)[0][:9] for x in sequences]), atol=1e-5)
    for n, found in zip((1, 4, 9), captured, strict=True):
        assert np.allclose(found, np.stack([recurrence(x)[1][n - 1] for x in sequences]), atol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
def test_the_kernel_for_a_few_tokens_gives_every_state_that_mlx_lms_gives(
    dims: tuple[int, int], dtype: mx.Dtype
) -> None:
    sequences = [inputs(n, 1, 2, *dims) for n in (6, 7)]
    sides = zip(*([a[:6] for a in x.arrays()[:-1]] for x in sequences), strict=True)
    state = mx.stack([x.arrays()[-1] for x in sequences])
    q, k, v, log_decay, beta = map(mx.stack, sides)
    arguments = (q, k, v.astype(dtype), log_decay, beta, state, (1, 2, 3, 4, 5, 6))
    out, captured = few_tokens.few_tokens(*arguments)
    wanted, states = MetalKernel().stretches(*arguments)
    assert out.dtype == dtype
    tolerance = 1e-6 if dtype == mx.float32 else 0.02  # a sum in another order may round to the other side
    for found, exact in zip([out, *captured], [wanted, *states], strict=True):
        assert np.allclose(found.astype(mx.float32), exact.astype(mx.float32), atol=tolerance)


@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
def test_a_few_tokens_with_all_their_states_are_one_launch(dims: tuple[int, int]) -> None:
    assert few_tokens.agrees(mx.bfloat16, *dims)
    if mx.metal.is_available():
        return  # launches are counted by the emulator alone
    before = few_tokens._kernel().n_launches
    x = inputs(8, 1, 2, *dims)
    q, k, v, log_decay, beta, state = (a[None] for a in x.arrays())
    MetalKernel().few(q, k, v.astype(mx.bfloat16), log_decay, beta, state, range(1, 9))
    assert few_tokens._kernel().n_launches == before + 1


@pytest.mark.parametrize(
    "fault",
    [("decay = precise::exp(log_decay", "decay = (log_decay"), ("if (slot < n_wanted", "if (no such thing")],
)
def test_a_kernel_that_differs_or_cannot_be_built_is_not_used(
    fault: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = few_tokens._SOURCE.replace(*fault)
    assert broken != few_tokens._SOURCE
    monkeypatch.setattr(few_tokens, "_SOURCE", broken)
    few_tokens._kernel.cache_clear()
    few_tokens.agrees.cache_clear()
    try:
        assert not few_tokens.agrees(mx.float32, 32, 16)
        assert "mlx-lm's is used" in caplog.text
        x = inputs(4, 1, 2, 32, 16)
        out, _ = MetalKernel().few(*(a[None] for a in x.arrays()), (1, 2, 3, 4))
        assert np.allclose(out[0], recurrence(x)[0], atol=1e-5)
    finally:
        few_tokens._kernel.cache_clear()
        few_tokens.agrees.cache_clear()
