"""Which files of a directory are the model: those that an index names, or all, if they agree."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model.checkpoint.load import load
from model.checkpoint.shards import INDEX, read_shards
from model.errors import CheckpointError
from tests.fakes import tiny

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def logits(path: Path) -> np.ndarray:
    model = load(path)
    return np.array(model.prefill(model.new_state(), np.arange(20, dtype=np.uint32)).logits)


def edit_index(path: Path, change: Callable[[dict[str, str]], Any]) -> None:
    index = json.loads((path / INDEX).read_text())
    (path / INDEX).write_text(json.dumps(index | {"weight_map": change(index["weight_map"])}))


@pytest.mark.parametrize("stray", ["model-4bit.safetensors", "model.safetensors", "model-00000.safetensors"])
def test_l3_a_stray_file_beside_an_index_is_not_read(stray: str, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    wanted = logits(path)
    other = tiny.weights(tiny.DENSE, seed=1)
    save_file(other, path / stray)
    assert np.array_equal(logits(path), wanted)


def test_l3_the_fingerprint_is_of_the_files_that_the_index_names(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    before = load(path).fingerprint
    save_file(tiny.weights(tiny.DENSE, seed=1), path / "model-4bit.safetensors")
    assert load(path).fingerprint == before


def test_l3_of_two_files_that_hold_a_tensor_the_indexed_one_counts(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    wanted = logits(path)
    where = json.loads((path / INDEX).read_text())["weight_map"]
    name = "model.norm.weight"
    other = FIRST if where[name] == SECOND else SECOND
    arrays = load_file(path / other)
    save_file(arrays | {name: np.full(64, 7, np.float32)}, path / other)
    assert np.array_equal(logits(path), wanted)


def test_l3_without_an_index_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    save_file({"model.norm.weight": np.ones(64, np.float32)}, path / "model-4bit.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight stands both in .* and in") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_l3_without_an_index_all_files_together_are_the_model(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    wanted = logits(path)
    (path / INDEX).unlink()
    assert np.array_equal(logits(path), wanted)


@pytest.mark.parametrize("gone", [FIRST, SECOND])
def test_l3_without_an_index_a_missing_number_of_a_series_is_named(gone: str, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    (path / INDEX).unlink()
    (path / gone).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {gone}"):
        load(path)


def test_l3_an_index_of_other_files_than_those_that_are_there_is_called_stale(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    for name in (FIRST, SECOND):
        (path / name).unlink()
    save_file(tiny.weights(tiny.DENSE), path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"It holds model\.safetensors: if that is the model, .* is stale"
    ):
        load(path)


def test_l3_an_index_of_tensors_that_its_files_do_not_hold_is_called_stale(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    edit_index(
        path, lambda where: where | {"model.layers.0.mlp.up_proj.weight": SECOND, "model.x.weight": FIRST}
    )
    with pytest.raises(CheckpointError, match=r"is stale: .* does not hold model"):
        load(path)


def test_l3_an_index_that_leaves_out_tensors_is_called_stale_and_what_lacks_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    edit_index(path, lambda where: {name: file for name, file in where.items() if "up_proj" not in name})
    with (
        caplog.at_level(logging.WARNING, logger="crossturn.model"),
        pytest.raises(CheckpointError, match=r"lack .*up_proj.* does not list all that its files hold"),
    ):
        load(path)
    assert "is stale: it does not list 4 tensors" in caplog.text


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_l3_an_index_that_leads_out_of_the_directory_is_refused(file: str, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    edit_index(path, lambda where: where | {"model.norm.weight": file})
    with pytest.raises(CheckpointError, match="is not a file beside it"):
        load(path)


@pytest.mark.parametrize("where", [None, [], {"model.norm.weight": 3}])
def test_l3_an_index_without_a_map_is_refused(where: Any, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    edit_index(path, lambda _: where)
    with pytest.raises(CheckpointError, match="has no weight_map"):
        load(path)


def test_a_file_that_is_cut_short_is_told_by_its_missing_bytes(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="is cut short: its last 10 bytes are missing"):
        load(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is no safetensors file"),
        (b"\xff" * 64, "is no safetensors file"),
        (b"\x08" + b"\0" * 7 + b"[1, 2] ]", "is no safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
    ],
    ids=["empty", "noise", "no object", "pointer"],
)
def test_a_file_that_is_none_is_named(content: bytes, told: str, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=told) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_the_headers_alone_tell_the_size_of_the_weights(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    assert read_shards(path).n_bytes == sum(w.nbytes for w in tiny.weights(tiny.DENSE).values())
