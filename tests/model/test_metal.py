"""What is special to Metal, in array operations that run anywhere."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest

from model.devices.metal import attention
from model.layers.attention import StepGroup
from model.state import KvLayout, KvRows


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


def packed_rows(n_seqs: int, n_rows: int, bits: int, dtype: mx.Dtype) -> KvRows:
    layout = KvLayout(2, 64, dtype, bits)
    buffers = layout.encode(*(random(n_seqs, 2, n_rows + 9, 64, seed=s).astype(dtype) for s in (1, 2)))
    return KvRows(layout, buffers, n_rows)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("n_queries", "is_padded"), [(1, False), (1, True), (5, False), (5, True)])
def test_attention_over_packed_rows_is_that_over_what_they_unpack_to(
    n_queries: int, is_padded: bool, bits: int, dtype: mx.Dtype
) -> None:
    rows = packed_rows(3, 70, bits, dtype)
    q = random(3, 8, n_queries, 64).astype(dtype)
    padding = mx.array([0, 20, 50], mx.int32) if is_padded else None
    mask = StepGroup(mx.arange(3), [rows], 70 - n_queries, padding).mask(n_queries)
    found = attention.attend_packed(q, rows, 0.125, mask).astype(mx.float32)
    keys, values = (side.astype(mx.float32) for side in rows.layout.decode(rows.stored))
    wanted = mx.fast.scaled_dot_product_attention(q.astype(mx.float32), keys, values, scale=0.125, mask=mask)
    # Scores are rounded to the dtype, in which those of likely keys are a few units.
    tolerance = {mx.float32: 1e-5, mx.float16: 1e-2, mx.bfloat16: 6e-2}[dtype]
    assert (mx.abs(found - wanted).max() / mx.abs(wanted).max()).item() < tolerance


def test_a_step_over_packed_rows_takes_no_memory_for_unpacked_ones() -> None:
    rows, q = packed_rows(1, 20_000, 4, mx.float16), random(1, 8, 1, 64).astype(mx.float16)
    mx.eval(q, rows.arrays)

    def peak(attend: Callable[[], mx.array]) -> int:
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(attend())
        return mx.get_peak_memory() - before

    unpacked = 2 * 2 * 64 * 20_000 * 2
    # The CPU's product copies packed rows of a larger buffer; their scores and shares come to that.
    packed = rows.n_bytes + 4 * 8 * 20_000 * 2
    assert peak(lambda: attention.attend(q, *rows.layout.decode(rows.stored), 0.125, None)) >= unpacked
    assert peak(lambda: attention.attend_packed(q, rows, 0.125, None)) <= packed < unpacked / 2
