"""The multi-token prediction head: its guesses, the forms it is read in, and what is remembered for it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from model.checkpoint.load import load
from model.codec import StateCodec
from model.errors import CheckpointError
from model.forward import Forward, Part
from model.layers.attention import StepGroup
from model.state import Checkpoint, State
from tests.fakes import tiny
from tests.fakes.heads import assert_rows_are_those_of, fresh, rows_of

GOLDENS = Path(__file__).parents[1] / "goldens"
SHAPES = {"dense": tiny.DENSE, "moe": tiny.MOE}


@pytest.fixture(scope="module", params=[None, 8], ids=["plain", "8 bits"])
def forward(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forward:
    """A tiny model with a head, its rows plain or quantised."""
    return load(tiny.write_with_mtp(tmp_path_factory.mktemp("tiny")), has_mtp=True, kv_bits=request.param)


def prompt(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, n).astype(np.uint32)


def guesses(forward: Forward, ids: np.ndarray, n: int = 4) -> list[int]:
    """What is guessed behind ``ids``, the last of them sampled and not fed."""
    batch = forward.new_batch()
    batch.join(0, fresh(forward, ids[:-1]))
    return cast(list[list[int]], batch.guess([0], mx.array(ids[-1:]), n).tolist())[0]


# -- what is guessed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_the_head_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    golden = np.load(GOLDENS / f"mtp_{name}.npz")
    forward = load(tiny.write_with_mtp(tmp_path, SHAPES[name]), has_mtp=True)
    network, rows = forward._network, rows_of(forward.new_state())
    assert network.mtp is not None
    ids, hidden = mx.array(golden["ids"])[None], mx.array(golden["hidden"])[None]
    group = StepGroup(mx.array([0]), [rows.kv], 0, None)
    logits = np.array(network.head(network.mtp.step(ids[:, 1:], hidden[:, :-1], [group]))[0])
    wanted = golden["logits"]
    assert np.abs(logits - wanted).max() / np.abs(wanted).max() < 1e-5


@pytest.mark.parametrize("name", SHAPES)
def test_chained_guesses_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    golden = np.load(GOLDENS / f"mtp_{name}.npz")
    forward = load(tiny.write_with_mtp(tmp_path, SHAPES[name]), has_mtp=True)
    assert guesses(forward, golden["ids"]) == golden["draft"].tolist()


def test_guesses_for_several_are_those_for_each_alone(forward: Forward) -> None:
    prompts = [prompt(n, seed=n) for n in (5, 40, 90)]
    alone = [guesses(forward, ids) for ids in prompts]
    batch = forward.new_batch()
    for key, ids in enumerate(prompts):
        batch.join(key, fresh(forward, ids[:-1]))
    last = mx.array([int(ids[-1]) for ids in prompts], mx.uint32)
    assert batch.guess([0, 1, 2], last, 4).tolist() == alone
    assert batch.guess([2, 0], last[mx.array([2, 0])], 4).tolist() == [alone[2], alone[0]]
    logits = np.array(batch.step(last))
    for key, ids in enumerate(prompts):
        wanted = np.array(forward.prefill(forward.new_state(), ids).logits)
        np.testing.assert_allclose(logits[key], wanted, atol=0.5 if forward.fingerprint.kv_bits else 1e-3)
        assert_rows_are_those_of(forward, ids, batch.leave(key))


# -- how it is stored --------------------------------------------------------------------------------


def test_a_head_is_read_in_every_form_it_is_stored_in(tmp_path: Path) -> None:
    golden = np.load(GOLDENS / "mtp_dense.npz")
    plain = tiny.write_text(tmp_path / "plain")
    mlx = tiny.write_mlx(tmp_path / "mlx")
    converted, raw = tiny.write_sidecar(tmp_path / "sidecar")
    whole = tiny.write_with_mtp(tmp_path / "whole")
    for path, head in (
        (tiny.write_mlx_with_mtp(tmp_path / "a"), None),
        (tiny.write_mlx_with_mtp(tmp_path / "b", prefix="mtp."), None),
        (plain, converted),
        (plain, raw),
        (mlx, converted),
        (mlx, raw),
        (mlx, whole),
    ):
        forward = load(path, mtp_path=head, has_mtp=True)
        assert guesses(forward, golden["ids"]) == golden["draft"].tolist(), (path, head)


@pytest.mark.parametrize("name", SHAPES)
def test_a_head_in_few_bits_guesses_with_the_values_it_stores(name: str, tmp_path: Path) -> None:
    golden = np.load(GOLDENS / f"mtp_{name}.npz")
    path = tiny.write_text(tmp_path, SHAPES[name])
    packed, plain = (
        load(path, mtp_path=head, has_mtp=True)
        for head in tiny.write_sidecar(tmp_path / "head", SHAPES[name], bits=4)
    )
    assert packed.n_weight_bytes < plain.n_weight_bytes
    assert guesses(packed, golden["ids"], 8) == guesses(plain, golden["ids"], 8)


def test_a_head_counts_as_weights_and_as_memory_of_each_token(tmp_path: Path) -> None:
    path = tiny.write_with_mtp(tmp_path)
    without, with_head = load(path), load(path, has_mtp=True)
    n_bytes = sum(w.nbytes for w in tiny.mtp_weights(tiny.DENSE).values())
    assert with_head.n_weight_bytes == without.n_weight_bytes + n_bytes
    assert not without.has_mtp
    state = fresh(with_head, prompt(300))
    assert with_head.state_bytes(300) - without.state_bytes(300) == rows_of(state).kv.n_bytes
    assert state.n_bytes == fresh(without, prompt(300)).n_bytes + rows_of(state).n_bytes


def test_a_states_fingerprint_does_not_depend_on_the_head_but_its_rows_do(tmp_path: Path) -> None:
    path, (converted, raw) = tiny.write_text(tmp_path), tiny.write_sidecar(tmp_path / "head")
    without = load(path).fingerprint
    prints = [load(path, mtp_path=head, has_mtp=True).fingerprint for head in (converted, raw)]
    assert {p.model for p in prints} == {without.model}
    assert len({p.mtp for p in (*prints, without)}) == 3
    own = load(tiny.write_with_mtp(tmp_path / "own"), has_mtp=True).fingerprint
    assert own.mtp == own.model


def edit(path: Path, **fields: Any) -> Path:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))
    return path


def without_norm(path: Path) -> Path:
    from safetensors.numpy import load_file, save_file

    arrays = load_file(path / "model.safetensors")
    save_file({n: w for n, w in arrays.items() if n != "mtp.norm.weight"}, path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: edit(path, mtp_num_hidden_layers=2), "2 layers"),
        (lambda path: edit(path, mtp_use_dedicated_embeddings=True), "embeddings of its own"),
        (without_norm, "lack norm.weight"),
    ],
)
def test_a_head_that_cannot_be_used_is_left_out_of_a_checkpoint_and_refused_where_it_was_asked_for(
    spoil: Callable[[Path], Path], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = spoil(tiny.write_with_mtp(tmp_path / "own"))
    with caplog.at_level(logging.WARNING, logger="crossturn.model"):
        assert not load(path, has_mtp=True).has_mtp
    assert told in caplog.text
    with pytest.raises(CheckpointError, match=told):
        load(tiny.write_text(tmp_path / "plain"), mtp_path=path, has_mtp=True)


def test_a_directory_without_a_head_and_a_head_of_another_model_are_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path / "plain")
    with pytest.raises(CheckpointError, match=r"neither mtp\.fc\.weight nor fc\.weight"):
        load(path, mtp_path=tiny.write_text(tmp_path / "other"), has_mtp=True)
    with pytest.raises(CheckpointError, match=r"the weights lack layers\.0\.mlp"):
        load(path, mtp_path=tiny.write_with_mtp(tmp_path / "moe", tiny.MOE), has_mtp=True)


# -- what is remembered ------------------------------------------------------------------------------


def test_rows_are_the_same_however_a_prompt_is_cut(forward: Forward) -> None:
    ids = prompt(230)
    state, start = forward.new_state(), 0
    for n in (1, 1, 2, 63, 64, 99):
        forward.prefill(state, ids[start : start + n], capture_at=[start + n])
        start += n
        assert_rows_are_those_of(forward, ids[:start], state)


@pytest.mark.parametrize("sizes", [(30, 61, 70), (30, 90, 200)], ids=["few tokens", "ragged"])
def test_rows_of_prompts_that_are_read_together_are_those_of_each(
    forward: Forward, sizes: tuple[int, ...]
) -> None:
    prompts = [prompt(n, seed=n) for n in sizes]
    states = [fresh(forward, ids[: 10 * i + 1]) for i, ids in enumerate(prompts)]
    parts = [
        Part(state, ids[state.length :], (state.length + 7,))
        for state, ids in zip(states, prompts, strict=True)
    ]
    starts = [state.length for state in states]
    for part, start, ids, read in zip(parts, starts, prompts, forward.prefill_together(parts), strict=True):
        assert_rows_are_those_of(forward, ids, part.state)
        part.state.restore(read.checkpoints[0])
        assert_rows_are_those_of(forward, ids[: start + 7], part.state)


@pytest.mark.parametrize("at", [1, 70, 129])
def test_a_state_that_went_back_has_the_rows_of_what_is_left(forward: Forward, at: int) -> None:
    ids, others = prompt(130), prompt(60, seed=1)
    state = forward.new_state()
    (checkpoint,) = forward.prefill(state, ids, capture_at=[at]).checkpoints
    state.restore(checkpoint)
    assert_rows_are_those_of(forward, ids[:at], state)
    forward.prefill(state, others)
    assert_rows_are_those_of(forward, np.concatenate([ids[:at], others]), state)


@pytest.mark.parametrize("at", [1, 70, 129])
def test_a_fork_has_rows_of_its_own(forward: Forward, at: int) -> None:
    ids, others = prompt(130), prompt(60, seed=1)
    state = forward.new_state()
    (checkpoint,) = forward.prefill(state, ids, capture_at=[at]).checkpoints
    forked = state.fork(checkpoint)
    assert_rows_are_those_of(forward, ids[:at], forked)
    forward.prefill(forked, others)
    assert_rows_are_those_of(forward, np.concatenate([ids[:at], others]), forked)
    assert_rows_are_those_of(forward, ids, state)


def test_what_was_cut_gives_its_memory_back(forward: Forward) -> None:
    state = forward.new_state()
    (checkpoint,) = forward.prefill(state, prompt(900), capture_at=[100]).checkpoints
    state.restore(checkpoint)
    state.shrink()
    assert (
        state.n_bytes == forward.state_bytes(100) + rows_of(state).width * rows_of(state).kv.layout.dtype.size
    )
    assert_rows_are_those_of(forward, prompt(900)[:100], state)


@pytest.mark.parametrize("n_kept", [1, 2, 3, 4])
def test_of_a_draft_only_what_was_kept_has_rows(forward: Forward, n_kept: int) -> None:
    ids = prompt(300)
    batch = forward.new_batch()
    fed = {0: 50, 1: 120}
    for key, n in fed.items():
        batch.join(key, fresh(forward, ids[:n]))
    for _ in range(70):  # more than may wait for their rows
        batch.step(mx.array([int(ids[n]) for n in fed.values()], mx.uint32))
        fed = {key: n + 1 for key, n in fed.items()}
    for _ in range(3):
        batch.guess([0, 1], mx.array([int(ids[n]) for n in fed.values()], mx.uint32), 3)
        right = ids[fed[0] : fed[0] + n_kept].tolist()
        drafted = [[*right, 3, 4, 5, 6][:4], [int(ids[fed[1]]), 9, 9, 9]]
        mx.eval(batch.extend(mx.array(drafted, mx.uint32)))
        batch.keep([n_kept, 1])
        fed = {0: fed[0] + n_kept, 1: fed[1] + 1}
    mx.eval(batch.step(mx.array([int(ids[n]) for n in fed.values()], mx.uint32)))
    fed = {key: n + 1 for key, n in fed.items()}
    checkpoint = batch.snapshot(0)
    forked = batch.fork(0, checkpoint)
    assert_rows_are_those_of(forward, ids[: fed[0]], forked)
    assert batch.n_bytes == batch.n_bytes_of(0) + batch.n_bytes_of(1)
    for key in (1, 0):
        assert_rows_are_those_of(forward, ids[: fed[key]], batch.leave(key))


# -- on disk -----------------------------------------------------------------------------------------


def stored(codec: StateCodec, state: State, *ends: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rows = [dict(codec.rows(state, a, b)) for a, b in zip((0, *ends), (*ends, state.length), strict=True)]
    return dict(codec.recurrent(state.snapshot())), rows


def read_back(codec: StateCodec, length: int, stored: tuple[dict[str, Any], list[dict[str, Any]]]) -> State:
    recurrent, rows = stored
    return codec.state(codec.checkpoint(length, recurrent), rows)


def test_rows_go_through_files(forward: Forward) -> None:
    ids = prompt(200)
    codec = StateCodec(forward.new_state, 7)
    again = read_back(codec, 200, stored(codec, fresh(forward, ids), 64, 128))
    assert rows_of(again).first == 1
    assert_rows_are_those_of(forward, ids, again)
    forward.prefill(again, prompt(9, seed=3))
    assert_rows_are_those_of(forward, np.concatenate([ids, prompt(9, seed=3)]), again)


def test_files_travel_between_servers_with_and_without_a_head(forward: Forward, tmp_path: Path) -> None:
    ids = prompt(200)
    headless = load(tiny.write_with_mtp(tmp_path), kv_bits=forward.fingerprint.kv_bits or None)
    codec, other, without = (
        StateCodec(forward.new_state, 7),
        StateCodec(forward.new_state, 8),
        StateCodec(headless.new_state),
    )
    assert codec.layout == other.layout == without.layout
    assert read_back(without, 200, stored(codec, fresh(forward, ids), 64)).mtp is None
    for source, made in ((without, fresh(headless, ids)), (other, fresh(forward, ids))):
        again = read_back(codec, 200, stored(source, made, 64))
        assert rows_of(again).kv.length == 0
        forward.prefill(again, prompt(9, seed=3))
        assert_rows_are_those_of(forward, np.concatenate([ids, prompt(9, seed=3)]), again)


def test_rows_begin_behind_the_last_file_without_any(forward: Forward) -> None:
    ids = prompt(200)
    codec = StateCodec(forward.new_state, 7)
    recurrent, rows = stored(codec, fresh(forward, ids), 64, 128)
    rows[1] = {name: array for name, array in rows[1].items() if name.startswith("kv")}
    again = read_back(codec, 200, (recurrent, rows))
    assert rows_of(again).first == 128
    assert_rows_are_those_of(forward, ids, again)
    batch = forward.new_batch()
    batch.join(0, again)
    assert batch.guess([0], mx.array([5], mx.uint32), 2).shape == (1, 2)


def test_a_state_file_without_the_last_row_of_the_model_leaves_no_gap(forward: Forward) -> None:
    ids = prompt(100)
    codec = StateCodec(forward.new_state, 7)
    recurrent, rows = stored(codec, fresh(forward, ids))
    again = read_back(codec, 100, ({n: a for n, a in recurrent.items() if n != "hidden"}, rows))
    assert rows_of(again).first == 101
    forward.prefill(again, prompt(9, seed=3))
    assert_rows_are_those_of(forward, np.concatenate([ids, prompt(9, seed=3)]), again)


def test_going_back_to_a_checkpoint_that_nothing_is_known_of_leaves_no_gap(forward: Forward) -> None:
    ids = prompt(100)
    state = forward.new_state()
    (checkpoint,) = forward.prefill(state, ids, capture_at=[60]).checkpoints
    state.restore(Checkpoint(60, checkpoint.layers))
    assert rows_of(state).first == 61
    forward.prefill(state, prompt(9, seed=3))
    assert_rows_are_those_of(forward, np.concatenate([ids[:60], prompt(9, seed=3)]), state)
