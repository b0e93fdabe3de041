"""States go through files without loss, whatever their layout."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from model.checkpoint.load import load
from model.codec import StateCodec
from model.forward import Forward
from model.state import State
from tests.fakes import tiny


@pytest.fixture(scope="module", params=[("float32", None), ("bfloat16", None), ("float32", 8)])
def forward(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forward:
    dtype, kv_bits = request.param
    return load(tiny.write_text(tmp_path_factory.mktemp("tiny")), dtype=dtype, kv_bits=kv_bits)


def prompt(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, n).astype(np.uint32)


def read(forward: Forward, n: int) -> State:
    state = forward.new_state()
    forward.prefill(state, prompt(n))
    return state


def next_logits(forward: Forward, state: State) -> np.ndarray:
    return np.array(forward.prefill(state, np.array([7, 8, 9], dtype=np.uint32)).logits)


def test_a_state_read_back_in_parts_goes_on_as_the_one_that_was_written(forward: Forward) -> None:
    state = read(forward, 300)
    codec = StateCodec(forward.new_state)
    rows = [codec.rows(state, a, b) for a, b in ((0, 128), (128, 256), (256, 300))]
    checkpoint = codec.checkpoint(300, codec.recurrent(state.snapshot()))
    again = codec.state(checkpoint, rows)
    again.check()
    assert again.length == 300
    assert np.array_equal(next_logits(forward, again), next_logits(forward, state))


def test_more_rows_than_the_checkpoint_stands_for_are_cut(forward: Forward) -> None:
    state = read(forward, 200)
    codec = StateCodec(forward.new_state)
    rows = [codec.rows(read(forward, 300), 0, 300)]
    again = codec.state(codec.checkpoint(200, codec.recurrent(state.snapshot())), rows)
    again.check()
    np.testing.assert_allclose(next_logits(forward, again), next_logits(forward, state), atol=1e-5)


def test_arrays_of_another_shape_are_refused(forward: Forward) -> None:
    state = read(forward, 100)
    codec = StateCodec(forward.new_state)
    recurrent = dict(codec.recurrent(state.snapshot()))
    checkpoint = codec.checkpoint(100, recurrent)
    recurrent["gdn.0.matrix"] = recurrent["gdn.0.matrix"][:, :1]
    with pytest.raises(ValueError, match=r"gdn\.0\.matrix is"):
        codec.checkpoint(100, recurrent)
    with pytest.raises(ValueError, match=r"gdn\.0\.matrix is missing"):
        codec.checkpoint(100, {"gdn.0.window": recurrent["gdn.0.window"]})
    with pytest.raises(ValueError, match="rows"):
        codec.state(checkpoint, [codec.rows(state, 0, 50)])


def test_layouts_tell_models_apart(forward: Forward, tiny_forward: Forward) -> None:
    ours, theirs = StateCodec(forward.new_state).layout, StateCodec(tiny_forward.new_state).layout
    is_same = forward.new_state().snapshot().layers[0].window.dtype == mx.float32
    assert (ours == theirs) == (is_same and len(forward.new_state().kv[0].arrays) == 2)


def test_arrays_are_in_memory_of_their_own(forward: Forward) -> None:
    state = read(forward, 100)
    rows = StateCodec(forward.new_state).rows(state, 0, 100)
    before = {name: array.copy() for name, array in rows.items()}
    forward.prefill(state, prompt(50))
    assert all(np.array_equal(rows[name], before[name]) for name in rows)


def test_a_checkpoint_directory_is_not_needed_to_read_states_back(forward: Forward, tmp_path: Path) -> None:
    state = read(forward, 60)
    codec = StateCodec(forward.new_state)
    np.savez(tmp_path / "rows.npz", **codec.rows(state, 0, 60))
    np.savez(tmp_path / "end.npz", **codec.recurrent(state.snapshot()))
    rows, end = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("rows", "end"))
    again = codec.state(codec.checkpoint(60, end), [rows])
    assert np.array_equal(next_logits(forward, again), next_logits(forward, state))
