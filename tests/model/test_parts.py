"""How much of a prompt a pass takes at once."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from model import forward as forward_module
from model.checkpoint.config import config_from
from model.checkpoint.load import load
from model.checkpoint.weights import parameters
from model.devices.cuda.device import CudaDevice
from model.devices.metal.device import MetalDevice
from model.forward import Pace, part_tokens, temporary_bytes
from model.layers.delta_rule import CHUNK
from tests.fakes import tiny
from tests.fakes.lm_modules import random_modules


def test_a_part_is_what_suits_the_device_where_memory_is_no_matter() -> None:
    assert part_tokens(512, 10**6) == 512
    assert part_tokens(4096, 10**6, 10**12) == 4096


def test_a_part_is_the_whole_chunks_that_fit_the_memory_and_never_less_than_a_few() -> None:
    sizes = [part_tokens(2048, 10**6, n_bytes) for n_bytes in (-(10**9), 0, 10**9, 10**9 + 10**8, 3 * 10**9)]
    assert sizes == [256, 256, 960, 1088, 2048]
    assert all(size % CHUNK == 0 for size in sizes)


@pytest.mark.parametrize(
    ("hidden", "n_layers", "n_heads", "n_value_heads", "inside", "measured"),
    [(1024, 24, (8, 2), 16, 3584, 3.4e6), (2560, 32, (16, 4), 32, 9216, 5.3e6)],
    ids=["0.8B", "4B"],
)
def test_what_a_token_takes_is_near_what_was_measured_on_a_gpu(
    hidden: int, n_layers: int, n_heads: tuple[int, int], n_value_heads: int, inside: int, measured: float
) -> None:
    raw = tiny.text_config(
        tiny.TinyShape(
            hidden=hidden,
            n_layers=n_layers,
            intermediate=inside,
            n_heads=n_heads[0],
            n_kv_heads=n_heads[1],
            head_dim=256,
            n_key_heads=16,
            n_value_heads=n_value_heads,
            gdn_head_dim=128,
        )
    )
    model = random_modules(raw)
    estimates = {
        device: temporary_bytes(config_from(raw), parameters(model), mx.bfloat16, device.layers_at_once)
        for device in (CudaDevice, MetalDevice)
    }
    assert 0.7 < estimates[CudaDevice] / measured < 1.4
    assert estimates[MetalDevice] < estimates[CudaDevice] / 8  # few layers at a time


def test_experts_count_as_often_as_a_token_passes_them() -> None:
    def estimate(n_chosen: int) -> int:
        raw = tiny.text_config(tiny.MOE) | {"num_experts_per_tok": n_chosen}
        model = random_modules(raw)
        return temporary_bytes(config_from(raw), parameters(model), mx.bfloat16, None)

    one, two, four = (estimate(n) for n in (1, 2, 4))
    assert four - two == 2 * (two - one) > 0


def test_a_prompt_in_the_smallest_parts_is_read_as_in_larger_ones(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tiny.write_text(tmp_path_factory.mktemp("tiny"))
    ids = np.random.default_rng(0).integers(0, 200, 700).astype(np.uint32)
    found = []
    for n_bytes in (2**40, 0):
        model = load(path)
        model.fit_parts(n_bytes)
        state = model.new_state()
        read = model.prefill(state, ids, capture_at=[300])
        found.append((model.part_tokens, read.logits, *read.checkpoints[0].arrays))
    (large, *one), (small, *other) = found
    assert (large, small) == (512, 256)
    assert all(mx.allclose(a, b, atol=1e-4).item() for a, b in zip(one, other, strict=True))


def test_m6_a_part_is_sized_by_the_speed_that_was_measured() -> None:
    pace = Pace()
    assert pace.tokens_within(1.0, 2048) == 256  # nothing is known yet
    pace.note(512, 512 / 70)
    assert pace.tokens_within(1.0, 2048) == 256  # 70 tokens a second, but never less than a few chunks
    assert pace.tokens_within(10.0, 2048) == 640
    pace.note(20, 10.0)  # a short one says nothing
    assert pace.tokens_within(10.0, 2048) == 640
    for _ in range(20):
        pace.note(2048, 2048 / 1000)
    assert pace.tokens_within(1.0, 2048) == 960
    assert pace.tokens_within(0.25, 2048) == 256
    assert pace.tokens_within(10.0, 2048) == 2048


def test_m6_reading_a_prompt_measures_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(tiny.write_text(tmp_path))
    seconds = iter(range(1000))
    monkeypatch.setattr(forward_module.time, "perf_counter", lambda: 5.0 * next(seconds))
    assert model.tokens_within(50.0) == 256
    model.prefill(model.new_state(), np.zeros(300, np.uint32))
    assert model.tokens_within(5.0) == 256
    assert model.tokens_within(6.5) == 384
