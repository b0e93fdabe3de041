"""Our forward pass against transformers' logits, over every layout a checkpoint may have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from model.checkpoint.load import load
from model.forward import Forward
from tests.fakes import tiny

GOLDENS = Path(__file__).parents[1] / "goldens"
SHAPES = {"dense": tiny.DENSE, "moe": tiny.MOE}
TOLERANCE = 1e-4  # of the largest logit


def relative_error(found: mx.array, wanted: np.ndarray) -> float:
    return float(np.abs(np.array(found) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 47, 63, 64, 65, 100, 127, 128, 129, 150])
def test_prefill_of_any_length_gives_transformers_logits(name: str, n: int, tmp_path: Path) -> None:
    golden = np.load(GOLDENS / f"{name}.npz")
    model = load(tiny.write_text(tmp_path, SHAPES[name]))
    logits = model.prefill(model.new_state(), golden["ids"][:n]).logits
    assert relative_error(logits, golden["logits"][n - 1]) < TOLERANCE


@pytest.mark.parametrize("name", SHAPES)
def test_decoding_token_by_token_gives_transformers_logits(name: str, tmp_path: Path) -> None:
    golden = np.load(GOLDENS / f"{name}.npz")
    model = load(tiny.write_text(tmp_path, SHAPES[name]))
    batch = model.new_batch()
    batch.join(0, model.new_state())
    logits = mx.concatenate([batch.step(mx.array([int(token)], mx.uint32)) for token in golden["ids"]])
    assert relative_error(logits, golden["logits"]) < TOLERANCE
    assert np.array_equal(np.array(logits).argmax(-1), golden["logits"].argmax(-1))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("write", [tiny.write_vlm, tiny.write_mlx], ids=["vlm", "mlx"])
def test_every_layout_gives_the_same_logits(
    name: str, write: Callable[[Path, tiny.TinyShape], Path], tmp_path: Path
) -> None:
    golden = np.load(GOLDENS / f"{name}.npz")
    model = load(write(tmp_path, SHAPES[name]))
    assert relative_error(last_logits(model, golden["ids"]), golden["logits"][-1]) < TOLERANCE


def test_experts_stored_one_by_one_give_the_same_logits(tmp_path: Path) -> None:
    golden = np.load(GOLDENS / "moe.npz")
    model = load(tiny.write_single_experts(tmp_path, tiny.MOE))
    assert relative_error(last_logits(model, golden["ids"]), golden["logits"][-1]) < TOLERANCE


def test_a_checkpoint_in_three_shards_gives_the_same_logits(tmp_path: Path) -> None:
    golden = np.load(GOLDENS / "dense.npz")
    model = load(tiny.write_text(tmp_path, n_shards=3))
    assert relative_error(last_logits(model, golden["ids"]), golden["logits"][-1]) < TOLERANCE


@pytest.mark.parametrize("name", SHAPES)
def test_a_4_bit_checkpoint_computes_with_the_values_it_stores(name: str, tmp_path: Path) -> None:
    packed, plain = (load(path) for path in tiny.write_4bit(tmp_path, SHAPES[name]))
    ids = np.load(GOLDENS / f"{name}.npz")["ids"]
    assert packed.n_weight_bytes < plain.n_weight_bytes / 3
    assert relative_error(last_logits(packed, ids), np.array(last_logits(plain, ids))) < TOLERANCE


def last_logits(model: Forward, ids: np.ndarray) -> mx.array:
    return model.prefill(model.new_state(), ids).logits
