"""The CPU's own forms of MLX's operations against MLX's."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from model.devices.cpu import operations


def random(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def test_the_exponential_is_exact_to_a_few_units_in_the_last_place() -> None:
    x = np.linspace(-86.5, 87.5, 200_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(np.array(operations.exp(mx.array(x))) / exact - 1).max() < 4e-7


def test_far_arguments_neither_overflow_nor_turn_into_nan() -> None:
    far = mx.array([-np.inf, -1e30, -200.0, 200.0, 1e30])
    assert np.all(np.array(operations.exp(far))[:3] < 1e-37)
    assert np.all(np.isfinite(np.array(operations.exp(far))))
    assert np.allclose(operations.sigmoid(far), [0, 0, 0, 1, 1])
    assert np.allclose(operations.silu(far[1:]), [0, 0, 200.0, 1e30], atol=1e-6)
    assert np.isnan(np.array(operations.exp(mx.array([np.nan]))))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_sigmoid_and_silu_are_those_of_mlx_for_any_layout(dtype: mx.Dtype) -> None:
    x = (random(40, 60) * 4).astype(dtype)
    for view in (x, x.T, x[3:, 5:17]):
        for ours, theirs in ((operations.sigmoid, mx.sigmoid), (operations.silu, nn.silu)):
            assert ours(view).dtype == dtype
            tolerance = 1e-6 if dtype == mx.float32 else 0.02
            assert mx.allclose(ours(view), theirs(view), rtol=tolerance, atol=tolerance).item()


@pytest.mark.parametrize(
    ("n_queries", "n_keys"), [(1, 1), (1, 777), (5, 5), (130, 130), (200, 1501), (3, 9000)]
)
def test_attention_is_that_of_mlx(n_queries: int, n_keys: int) -> None:
    q, k, v = random(1, 4, n_queries, 32), random(1, 2, n_keys, 32, seed=1), random(1, 2, n_keys, 32, seed=2)
    mask = "causal" if n_queries > 1 else None
    found = operations.attend(q, k, v, 0.3, mask)
    wanted = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)
    assert mx.allclose(found, wanted, atol=2e-6).item()


def test_attention_of_a_padded_batch_is_that_of_mlx() -> None:
    q, k, v = random(3, 4, 1, 32), random(3, 2, 40, 32, seed=1), random(3, 2, 40, 32, seed=2)
    mask = (mx.arange(40) >= mx.array([0, 39, 7])[:, None])[:, None, None, :]
    found = operations.attend(q, k, v, 0.3, mask)
    wanted = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)
    assert mx.allclose(found, wanted, atol=2e-6).item()


@pytest.mark.parametrize("n_rows", [1, 3, 4, 50])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("quantised", [False, True])
def test_a_linear_layer_applied_the_cpus_way_gives_the_same(n_rows: int, bias: bool, quantised: bool) -> None:
    layer: nn.Module = nn.Linear(64, 96, bias=bias)
    if quantised:
        layer = nn.QuantizedLinear.from_linear(layer, 32, 4)
    x = random(1, n_rows, 64)
    found = operations.apply(layer, x)
    assert found.shape == (1, n_rows, 96)
    assert mx.allclose(found, layer(x), atol=1e-5).item()
