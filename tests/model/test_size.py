"""What a checkpoint takes is told before it is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from model.checkpoint.load import load
from model.checkpoint.size import Footprint, footprint
from model.errors import CheckpointError
from tests.fakes import tiny
from tests.model.test_quantisation import edit_config, write_fp8

WIDE = replace(tiny.DENSE, hidden=128, intermediate=128)


def written(path: Path) -> list[Path]:
    """Checkpoints of every kind."""
    packed = [
        tiny.write_quantised(path / mode, WIDE, mode=mode)[0]
        for mode in ("affine", "mxfp4", "mxfp8", "nvfp4")
    ]
    plain = [
        tiny.write_vlm(path / "vlm"),
        tiny.write_text(path / "experts", tiny.MOE, n_shards=2),
        tiny.write_mlx(path / "mlx"),
        write_fp8(path, tiny.DENSE)[0],
    ]
    return packed + plain


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", None])
def test_the_footprint_is_what_the_loaded_model_takes(dtype: str | None, tmp_path: Path) -> None:
    for path in written(tmp_path):
        told, model = footprint(path, dtype=dtype or "float32"), load(path, dtype=dtype)
        assert told.weights == model.n_weight_bytes, path.name
        assert told.state == model.new_state().n_bytes
        assert told.token == model.kv_layout.row_bytes * model.config.n_full_attention_layers
        assert told.max_context == model.config.max_context


def test_without_a_dtype_a_checkpoint_computes_in_its_own(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    assert footprint(path) == footprint(path, dtype="float32")


def test_a_context_is_what_the_bytes_hold_and_the_model_knows() -> None:
    size = Footprint(weights=0, state=1000, token=10, max_context=50)
    assert [size.context_within(n) for n in (0, 1000, 1009, 1010, 1500, 9999)] == [0, 0, 0, 1, 50, 50]


def test_what_could_not_be_loaded_is_refused_by_its_headers_alone(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    edit_config(path, quantization_config={"quant_method": "awq"})
    with pytest.raises(CheckpointError, match="quantised by awq"):
        footprint(path)
