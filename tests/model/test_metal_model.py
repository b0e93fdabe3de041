"""Whole models by Metal's code, on whatever MLX computes on here, against the CPU's code in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import model.forward as forward_module
from model.backend import detect
from model.batch import DecodeBatch
from model.checkpoint.load import load
from model.devices.cpu.device import CpuDevice
from model.devices.metal.device import MetalDevice
from model.forward import Forward, Part
from model.state import KvLayout, State
from server.engine.loop import EngineLoop
from tests.fakes import tiny
from tests.fakes.driver import Driver
from tests.fakes.metal import metal

pytestmark = pytest.mark.skipif(detect().kind == "cuda", reason="the CPU's code reads arrays in place")

CPU = CpuDevice("a CPU", 2**34, 2)
# Heads whose widths fit the kernel and every packed format.
DENSE = replace(tiny.DENSE, vocab=96, hidden=64, intermediate=64, gdn_head_dim=32, head_dim=32)
MOE = replace(DENSE, n_experts=4, tied=False)
SHAPES = {"dense": DENSE, "untied": replace(DENSE, tied=False), "experts": MOE}
IDS = np.random.default_rng(0).integers(0, 96, 200).astype(np.uint32)


@pytest.fixture(autouse=True)
def mac() -> Iterator[MetalDevice]:
    with metal() as device:
        yield device


def error(found: mx.array, wanted: mx.array) -> float:
    a, b = np.array(found.astype(mx.float32)), np.array(wanted.astype(mx.float32))
    assert np.isfinite(a).all()
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def read_and_write(model: Forward, force: list[int]) -> tuple[list[mx.array], State]:
    """Logits of a prompt in two parts, of what follows from a capture inside, and of three steps."""
    state = model.new_state()
    first = model.prefill(state, IDS[:90], capture_at=[17, 64])
    second = model.prefill(state, IDS[90:130])
    batch = model.new_batch()
    batch.join(0, state.fork(first.checkpoints[1]))
    batch.join(1, state)
    steps = [batch.step(mx.array([force[i], force[i]], mx.uint32)) for i in range(3)]
    extended = batch.extend(mx.array([force[3:6], force[3:6]], mx.uint32))
    batch.keep([2, 3])
    last = batch.step(mx.array([force[6], force[6]], mx.uint32))
    mx.eval(*steps, extended, last)
    left = batch.leave(1)
    left.check()
    return [first.logits, second.logits, *steps, extended, last], left


def total_error(found: list[mx.array], wanted: list[mx.array]) -> float:
    return sum(map(error, found, wanted))


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_weights_in_float32(shape: str, mac: MetalDevice, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, SHAPES[shape])
    wanted, exact = read_and_write(load(path, device=CPU), IDS[130:].tolist())
    found, state = read_and_write(load(path, device=mac), IDS[130:].tolist())
    assert max(map(error, found, wanted)) < 2e-5
    assert max(map(error, state.snapshot().arrays, exact.snapshot().arrays)) < 2e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_plain_weights_in_sixteen_bits(shape: str, dtype: str, mac: MetalDevice, tmp_path: Path) -> None:
    """Random weights make much of every rounding: no more than other code in the same type makes of it."""
    path = tiny.write_text(tmp_path, SHAPES[shape])
    wanted, _ = read_and_write(load(path, device=CPU), IDS[130:].tolist())
    usual, _ = read_and_write(load(path, dtype=dtype, device=CPU), IDS[130:].tolist())
    model = load(path, dtype=dtype, device=mac)
    found, state = read_and_write(model, IDS[130:].tolist())
    assert total_error(found, wanted) < 1.5 * total_error(usual, wanted)
    assert {layer.window.dtype for layer in state.recurrent} == {getattr(mx, dtype)}
    assert {layer.matrix.dtype for layer in state.recurrent} == {mx.float32}


@pytest.mark.parametrize(
    ("mode", "bits"),
    [("affine", 4), ("affine", 6), ("affine", 8), ("mxfp4", 4), ("mxfp8", 8), ("nvfp4", 4)],
    ids=lambda value: str(value),
)
@pytest.mark.parametrize("shape", SHAPES)
def test_quantised_weights(shape: str, mode: str, bits: int, mac: MetalDevice, tmp_path: Path) -> None:
    packed, plain = tiny.write_quantised(tmp_path, SHAPES[shape], mode=mode, bits=bits)
    wanted, _ = read_and_write(load(plain, device=CPU), IDS[130:].tolist())
    found, state = read_and_write(load(packed, device=mac), IDS[130:].tolist())  # the dtype is the norms'
    assert max(map(error, found, wanted)) < 1e-3
    assert state.kv[0].arrays[0].dtype == mx.float32


@pytest.mark.parametrize("shape", SHAPES)
def test_quantised_weights_in_bfloat16(shape: str, mac: MetalDevice, tmp_path: Path) -> None:
    packed, plain = tiny.write_quantised(tmp_path, SHAPES[shape], bits=4)
    wanted, _ = read_and_write(load(plain, device=CPU), IDS[130:].tolist())
    usual, _ = read_and_write(load(packed, dtype="bfloat16", device=CPU), IDS[130:].tolist())
    found, _ = read_and_write(load(packed, dtype="bfloat16", device=mac), IDS[130:].tolist())
    assert total_error(found, wanted) < 1.5 * total_error(usual, wanted)


@pytest.mark.parametrize(("kv_bits", "tolerance"), [(8, 0.03), (4, 0.35)])
def test_quantised_keys_and_values(kv_bits: int, tolerance: float, mac: MetalDevice, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, DENSE)
    wanted, _ = read_and_write(load(path, dtype="float32", device=CPU), IDS[130:].tolist())
    found, _ = read_and_write(load(path, kv_bits=kv_bits, device=mac), IDS[130:].tolist())
    assert max(map(error, found, wanted)) < tolerance


def test_a_step_over_quantised_keys_and_values_unpacks_none_of_them(
    mac: MetalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny.write_text(tmp_path, DENSE), kv_bits=8, device=mac)
    batch = model.new_batch()
    for key, n in enumerate((70, 90)):
        state = model.new_state()
        model.prefill(state, IDS[:n])
        batch.join(key, state)
    monkeypatch.setattr(KvLayout, "decode", None)
    for _ in range(2):
        mx.eval(batch.step(mx.array([3, 4], mx.uint32)))
    mx.eval(batch.extend(mx.array([[5, 6], [7, 8]], mx.uint32)))


@pytest.mark.parametrize("shape", ["dense", "experts"])
def test_members_of_unlike_lengths_write_what_each_writes_alone(
    shape: str, mac: MetalDevice, tmp_path: Path
) -> None:
    model = load(tiny.write_text(tmp_path, SHAPES[shape]), device=mac)

    def written(lengths: tuple[int, ...]) -> list[list[int]]:
        batch = model.new_batch()
        tokens = []
        for key, n in enumerate(lengths):
            state = model.new_state()
            tokens.append([int(mx.argmax(model.prefill(state, IDS[:n]).logits))])
            batch.join(key, state)
        for _ in range(6):
            last = mx.array([row[-1] for row in tokens], mx.uint32)
            for row, token in zip(tokens, mx.argmax(batch.step(last), -1).tolist(), strict=True):
                row.append(token)
        return tokens

    lengths = (3, 64, 131, 40)
    assert written(lengths) == [written((n,))[0] for n in lengths]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_warm_equals_cold_through_edits_and_a_cancelled_prompt(
    dtype: str, mac: MetalDevice, tmp_path: Path, make_loop: Callable[..., EngineLoop]
) -> None:
    model = load(tiny.write_text(tmp_path, replace(DENSE, vocab=256)), dtype=dtype, device=mac)
    # Parts that end at the same places, so that rounding is the same too.
    warm = Driver(make_loop(forward=model))
    prompt = np.random.default_rng(1).integers(3, 250, 400).tolist()
    warm.ask(prompt[:128], session="one")
    cancelled = warm.submit(prompt, session="one")
    for _ in range(2):
        warm.loop.step()
    warm.loop.cancel(cancelled.id)
    warm.run()
    assert cancelled.failed is not None
    for n in (400, 256, 330):
        cold = Driver(make_loop(forward=model))
        told = warm.ask(prompt[:n], session="one")
        if dtype == "float32":
            assert told.token_ids == cold.ask(prompt[:n], session="one").token_ids
        assert told.report.reused_tokens > 0


@pytest.mark.parametrize("shape", ["dense", "experts"])
def test_prompts_of_unlike_lengths_in_one_pass_are_read_as_each_alone(
    shape: str, mac: MetalDevice, tmp_path: Path
) -> None:
    model = load(tiny.write_text(tmp_path, SHAPES[shape]), device=mac)
    assert model.reads_ragged
    wanted = [(0, 90, (17, 64)), (30, 1, ()), (10, 66, (75,))]
    parts, singles = (
        [Part(begun(model, past), IDS[past : past + n], captures) for past, n, captures in wanted]
        for _ in range(2)
    )
    for own, part, single in zip(model.prefill_together(parts), parts, singles, strict=True):
        alone = model.prefill(single.state, single.ids, capture_at=single.capture_at)
        assert error(own.logits, alone.logits) < 2e-5
        assert max(map(error, part.state.snapshot().arrays, single.state.snapshot().arrays)) < 2e-5
        for mine, theirs in zip(own.checkpoints, alone.checkpoints, strict=True):
            assert mine.length == theirs.length
            assert max(map(error, mine.arrays, theirs.arrays)) < 2e-5


def begun(model: Forward, n_past: int) -> State:
    state = model.new_state()
    if n_past:
        model.prefill(state, IDS[:n_past])
    return state


@pytest.mark.parametrize(
    ("seconds_per_token", "lengths"),
    [(1e-4, [256, 1024, 1024]), (1e-3, [256, 960, 960]), (1e-2, [256, 256, 256])],
)
def test_the_warm_up_reads_a_padded_batch_and_as_much_of_a_full_part_as_a_second_takes(
    seconds_per_token: float, lengths: list[int], mac: MetalDevice, tmp_path: Path, monkeypatch: Any
) -> None:
    model = load(tiny.write_text(tmp_path, DENSE), dtype="float32", device=mac)
    model.part_tokens = 1024
    now, read, paddings = 0.0, [], []
    part, positions = Forward._prefill_part, DecodeBatch._positions

    def timed(self: Forward, state: State, ids: mx.array, capture_at: Sequence[int]) -> Any:
        nonlocal now
        now += ids.shape[1] * seconds_per_token
        read.append((ids.shape[1], len(capture_at)))
        return part(self, state, ids, capture_at)

    def noted(self: DecodeBatch) -> Any:
        groups = positions(self)
        paddings.extend(group.padding is not None for group in groups)
        return groups

    monkeypatch.setattr(forward_module.time, "perf_counter", lambda: now)
    monkeypatch.setattr(Forward, "_prefill_part", timed)
    monkeypatch.setattr(DecodeBatch, "_positions", noted)
    model.warm_up()
    assert read[-3:] == [(n, 1) for n in lengths]
    assert {True, False} <= {*paddings}
