"""What is special to Metal, in array operations that run anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


class Chip:
    """A chip on which MLX's attention takes so long, by whether it is forced to fuse and by how many keys
    there are; None where it cannot. A fused kernel's results are multiplied by ``fault``."""

    def __init__(self, blocks: float, fused: dict[int, float | None], fault: float = 1.0) -> None:
        self.now = 0.0
        self.n_forced = 0
        self._blocks, self._fused, self._fault = blocks, fused, fault
        self._attend = mx.fast.scaled_dot_product_attention

    def attend(self, q: mx.array, k: mx.array, *rest: Any, force_fused: bool = False, **options: Any) -> Any:
        out = self._attend(q, k, *rest, **options)
        if not force_fused:
            self.now += self._blocks
            return out
        seconds = self._fused[k.shape[2]]
        if seconds is None:
            raise ValueError("no fused kernel is available")
        self.now += seconds
        self.n_forced += 1
        return out * self._fault


@pytest.fixture
def small_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_SHORT", (16, 32))
    monkeypatch.setattr(attention, "_LONG", (16, 96))
    monkeypatch.setattr(attention, "_SHORT_KEYS", 64)


HEADS = attention.Heads(4, 2, 256)


@pytest.mark.usefixtures("small_trials")
@pytest.mark.parametrize(
    ("chip", "is_forced"),
    [
        (Chip(1.0, {32: 0.5, 96: 0.5}), {32: True, 96: True}),
        (Chip(1.0, {32: 2.0, 96: 0.5}), {32: False, 96: True}),
        (Chip(1.0, {32: 0.5, 96: 2.0}), {32: True, 96: False}),
        (Chip(1.0, {32: 2.0, 96: 2.0}), {32: False, 96: False}),
        (Chip(1.0, {32: None, 96: None}), {32: False, 96: False}),
        (Chip(1.0, {32: None, 96: 0.5}), {32: False, 96: True}),
        (Chip(1.0, {32: 0.5, 96: 0.5}, fault=1.1), {32: False, 96: False}),  # fast, and wrong
        (Chip(1.0, {32: 0.5, 96: 0.5}, fault=float("nan")), {32: False, 96: False}),
    ],
)
def test_the_faster_way_to_attend_is_chosen_by_a_trial_at_start_unless_it_is_wrong(
    chip: Chip, is_forced: dict[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", chip.attend)
    attend = attention.chosen(attention.attend, HEADS, mx.bfloat16, clock=lambda: chip.now)
    for n_keys, wanted in is_forced.items():
        q, k = random(1, 4, 16, 256), random(1, 2, n_keys, 256)
        before = chip.n_forced
        attend(q, k, k, 0.1, "causal")
        assert (chip.n_forced > before) is wanted
        before = chip.n_forced
        attend(q[:, :, :1], k, k, 0.1, None)  # steps are always MLX's choice
        assert chip.n_forced == before


@pytest.mark.usefixtures("small_trials")
def test_here_attention_goes_in_blocks_and_narrow_heads_are_not_tried() -> None:
    if not mx.metal.is_available():
        assert attention.chosen(attention.attend, HEADS, mx.float32) is attention.attend
    narrow = HEADS._replace(head_dim=128)
    assert attention.chosen(attention.attend, narrow, mx.float32, clock=NotImplemented) is attention.attend
