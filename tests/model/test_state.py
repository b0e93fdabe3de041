"""States: whatever is saved, restored, cut, forked or captured continues as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoint.load import load
from model.forward import Forward
from model.state import Checkpoint, State
from tests.fakes import tiny

IDS = np.load(Path(__file__).parents[1] / "goldens" / "dense.npz")["ids"]
N = len(IDS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Forward:
    return load(tiny.write_text(tmp_path_factory.mktemp("dense")))


@pytest.fixture(scope="module")
def uncut(model: Forward) -> np.ndarray:
    """Logits [V] after all of IDS in one pass."""
    return np.array(model.prefill(model.new_state(), IDS).logits)


def assert_close(logits: mx.array, wanted: np.ndarray) -> None:
    assert np.abs(np.array(logits) - wanted).max() < 1e-4 * np.abs(wanted).max()


def captured_everywhere(model: Forward, first: int = 0) -> tuple[State, dict[int, Checkpoint]]:
    state = model.new_state()
    if first:
        model.prefill(state, IDS[:first])
    found = model.prefill(state, IDS[first:], capture_at=range(first + 1, N + 1))
    return state, {checkpoint.length: checkpoint for checkpoint in found.checkpoints}


@pytest.mark.slow
def test_a_state_restored_at_any_position_continues_to_the_logits_of_the_uncut_run(
    model: Forward, uncut: np.ndarray
) -> None:
    _, checkpoints = captured_everywhere(model)
    assert sorted(checkpoints) == list(range(1, N + 1))
    for position in range(N - 1, 0, -1):
        state = model.new_state()
        model.prefill(state, IDS)
        state.restore(checkpoints[position])
        state.check()
        assert_close(model.prefill(state, IDS[position:]).logits, uncut)


@pytest.mark.parametrize("first", [0, 1, 37, 64])
def test_a_capture_is_the_state_of_a_pass_that_ends_there(model: Forward, first: int) -> None:
    _, checkpoints = captured_everywhere(model, first)
    for position in range(first + 1, N + 1, 7):
        state = model.new_state()
        model.prefill(state, IDS[:position])
        for found, wanted in zip(checkpoints[position].layers, state.recurrent, strict=True):
            assert np.allclose(found.window, wanted.window, atol=5e-5)
            assert np.allclose(found.matrix, wanted.matrix, atol=5e-5)


def test_captures_do_not_change_the_pass(model: Forward, uncut: np.ndarray) -> None:
    found = model.prefill(model.new_state(), IDS, capture_at=(3, 64, 65, 149, 150))
    assert np.array_equal(np.array(found.logits), uncut)


def test_cutting_at_whole_chunks_gives_the_same_states(model: Forward, uncut: np.ndarray) -> None:
    state = model.new_state()
    model.prefill(state, IDS[:64])
    model.prefill(state, IDS[64:128])
    whole = model.new_state()
    model.prefill(whole, IDS[:128])
    for cut, once in zip(state.recurrent, whole.recurrent, strict=True):
        assert np.allclose(cut.matrix, once.matrix, atol=1e-6)
    assert_close(model.prefill(state, IDS[128:]).logits, uncut)


def test_a_fork_and_its_origin_go_their_own_ways(model: Forward, uncut: np.ndarray) -> None:
    state, checkpoints = captured_everywhere(model)
    other = IDS[::-1].copy()
    fork = state.fork(checkpoints[70])
    fork.check()
    model.prefill(fork, other[:40])
    state.restore(checkpoints[100])
    assert_close(model.prefill(state, IDS[100:]).logits, uncut)
    fresh = model.new_state()
    model.prefill(fresh, np.concatenate([IDS[:70], other[:40]]))
    next_ids = other[40:60]
    assert_close(model.prefill(fork, next_ids).logits, np.array(model.prefill(fresh, next_ids).logits))


def test_a_cut_without_a_restore_fails_the_check(model: Forward) -> None:
    state = model.new_state()
    model.prefill(state, IDS[:20])
    state.truncate(10)
    with pytest.raises(AssertionError, match="different positions"):
        state.check()
    with pytest.raises(AssertionError, match="cut"):
        state.snapshot()


def test_a_recurrent_state_left_behind_by_a_cut_would_be_seen_in_the_logits(
    model: Forward, uncut: np.ndarray
) -> None:
    # The fault this guards against: KV rows cut to a prefix while the recurrent state starts anew.
    state = model.new_state()
    model.prefill(state, IDS)
    state.truncate(100)
    state.recurrent = model.new_state().recurrent
    state.position = 100
    wrong = np.array(model.prefill(state, IDS[100:]).logits)
    assert np.abs(wrong - uncut).max() > 1e-2 * np.abs(uncut).max()


def test_a_checkpoint_costs_its_recurrent_states_and_no_rows(model: Forward) -> None:
    state, checkpoints = captured_everywhere(model)
    config = model.config
    n_layers = config.n_layers - config.n_full_attention_layers
    matrix = config.n_value_heads * config.value_head_dim * config.key_head_dim
    window = (config.conv_kernel - 1) * config.conv_dim
    assert checkpoints[70].n_bytes == 4 * n_layers * (matrix + window)
    rows = config.n_full_attention_layers * 2 * config.kv_dim * 4
    assert state.n_bytes == checkpoints[70].n_bytes + state.kv[0].capacity * rows


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=5), back=st.integers(0, 4))
def test_any_way_of_cutting_and_going_back_ends_at_the_same_logits(
    model: Forward, uncut: np.ndarray, cuts: list[int], back: int
) -> None:
    state, kept = model.new_state(), [model.new_state().snapshot()]
    for end in sorted(set(cuts)):
        kept += model.prefill(state, IDS[state.length : end], capture_at=(end,)).checkpoints
    state.restore(kept[max(0, len(kept) - 1 - back)])
    assert_close(model.prefill(state, IDS[state.length :]).logits, uncut)
