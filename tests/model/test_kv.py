"""Stored keys and values: room to grow, cuts, copies, and what quantising them costs."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from model.checkpoint.load import load
from model.errors import CheckpointError
from model.state import KvLayout, KvRows, capacity_for
from tests.fakes import tiny

IDS = np.load(Path(__file__).parents[1] / "goldens" / "dense.npz")["ids"]


@pytest.fixture(params=[0, 8, 4], ids=["plain", "8 bits", "4 bits"])
def layout(request: pytest.FixtureRequest) -> KvLayout:
    return KvLayout(n_heads=2, head_dim=32, dtype=mx.float32, bits=request.param)


def random_rows(n: int, seed: int = 0) -> mx.array:
    return mx.random.normal((1, 2, n, 32), key=mx.random.key(seed))


def tolerance(layout: KvLayout) -> float:
    """Half a step of a scale over some ten standard deviations, the widest a group may span."""
    return {0: 0.0, 8: 0.025, 4: 0.4}[layout.bits]


def test_what_is_appended_can_be_read_across_growth(layout: KvLayout) -> None:
    rows, parts = KvRows.empty(layout), [random_rows(n, n) for n in (1, 300, 5, 700)]
    for part in parts:
        keys, values = rows.append(part, -part)
    everything = np.concatenate([np.array(part) for part in parts], axis=2)
    assert rows.length == everything.shape[2] == 1006
    assert np.abs(np.array(keys) - everything).max() <= tolerance(layout)
    assert np.abs(np.array(values) + everything).max() <= tolerance(layout)


@pytest.mark.parametrize(("multiple", "n_columns"), [(64, 256), (None, 512)])
def test_reserved_rows_start_with_those_in_use_and_end_with_finite_ones(
    layout: KvLayout, multiple: int | None, n_columns: int
) -> None:
    rows = KvRows.empty(layout)
    rows.push(random_rows(300), random_rows(300, 1))
    rows.truncate(200)
    rows.push(random_rows(5, 2), random_rows(5, 3))
    keys, values = rows.reserved(multiple)
    assert keys.shape[2] == values.shape[2] == n_columns
    assert np.abs(np.array(keys[:, :, 200:205]) - np.array(random_rows(5, 2))).max() <= tolerance(layout)
    assert np.isfinite(np.array(keys)).all()
    assert np.isfinite(np.array(values)).all()


def test_a_copy_keeps_its_rows_when_others_are_written(layout: KvLayout) -> None:
    rows = KvRows.empty(layout)
    before = np.array(rows.append(random_rows(20), random_rows(20))[0])
    copy = rows.copy(20)
    rows.truncate(10)
    if layout.bits:
        rows.append(*(mx.ones((1, 2, 1, 32)) for _ in range(2)))
    else:  # in place, as a device may whose memory is the host's
        for buffer in rows.reserve(1):
            np.asarray(buffer)[:, :, 10] = 1.0
    kept, _ = copy.append(random_rows(1), random_rows(1))
    assert np.array_equal(np.array(kept)[:, :, :20], before)


def test_bytes_are_those_of_the_reserved_rows(layout: KvLayout) -> None:
    rows = KvRows.empty(layout)
    assert rows.n_bytes == 0
    rows.append(random_rows(300), random_rows(300))
    assert rows.capacity == capacity_for(300) == 512
    assert rows.n_bytes == 512 * layout.row_bytes
    rows.truncate(1)
    assert rows.n_bytes == 512 * layout.row_bytes


def test_rows_after_a_cut_take_the_place_of_those_before(layout: KvLayout) -> None:
    rows, first, second = KvRows.empty(layout), random_rows(20, 1), random_rows(20, 2)
    rows.append(first, first)
    rows.truncate(7)
    keys, _ = rows.append(second, second)
    wanted = np.concatenate([first[:, :, :7], second], axis=2)
    assert np.abs(np.array(keys) - wanted).max() <= tolerance(layout)


def test_a_copy_shares_nothing(layout: KvLayout) -> None:
    rows = KvRows.empty(layout)
    before, _ = rows.append(random_rows(20), random_rows(20))
    before = np.array(before)
    copy = rows.copy(10)
    copy.append(random_rows(5, 9), random_rows(5, 9))
    rows.truncate(19)
    after, _ = rows.append(random_rows(1), random_rows(1))
    assert np.array_equal(np.array(after)[:, :, :19], before[:, :, :19])
    assert copy.n_bytes == 256 * layout.row_bytes


@pytest.mark.parametrize(("bits", "error"), [(8, 0.02), (4, 0.3)])
def test_quantised_rows_change_logits_little_and_restore_as_exactly_as_plain_ones(
    bits: int, error: float, tmp_path: Path
) -> None:
    path = tiny.write_text(tmp_path)
    plain, model = load(path), load(path, kv_bits=bits)
    wanted = np.array(plain.prefill(plain.new_state(), IDS).logits)
    state = model.new_state()
    found = model.prefill(state, IDS, capture_at=(50, 100))
    logits = np.array(found.logits)
    assert 0 < np.abs(logits - wanted).max() < error * np.abs(wanted).max()
    for checkpoint in reversed(found.checkpoints):
        state.restore(checkpoint)
        state.check()
        fork = state.fork(checkpoint)
        for continued in (state, fork):
            again = np.array(model.prefill(continued, IDS[checkpoint.length :]).logits)
            assert np.abs(again - logits).max() < 1e-3 * np.abs(logits).max()
    assert state.n_bytes < model.state_bytes(0) + (plain.state_bytes(150) - plain.state_bytes(0)) / 2
    assert model.fingerprint != plain.fingerprint


def test_other_widths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="8 or 4 bits, not in 5"):
        load(tiny.write_text(tmp_path), kv_bits=5)
