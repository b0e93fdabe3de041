"""What is special to Metal, in array operations that run anywhere."""

from __future__ import annotations

import mlx.core as mx
import pytest

from model.devices.metal import attention


def random(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


@pytest.mark.parametrize("n_queries", [1, 8, 9, 150])
def test_attention_of_wide_heads_on_metal_is_that_of_mlx_in_pieces_of_bounded_size(
    n_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (random(1, 4, n_queries, 256), *(random(1, 2, 333, 256, seed=seed) for seed in (1, 2)))
    mask = "causal" if n_queries > 1 else None
    attend = mx.fast.scaled_dot_product_attention
    wanted = attend(q, k, v, scale=0.1, mask=mask)
    n_scores = []

    def noted(q: mx.array, k: mx.array, *rest: mx.array, **options: object) -> mx.array:
        n_scores.append(q.shape[1] * q.shape[2] * k.shape[2])
        return attend(q, k, *rest, **options)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(attention, "_MOST_SCORES", 20_000)
    found = attention.attend(q, k, v, 0.1, mask)
    assert mx.allclose(found, wanted, atol=2e-6).item()
    assert max(n_scores) <= 20_000
    assert len(n_scores) == (1 if n_queries <= 8 else -(-n_queries // 15))
