"""Weights in few bits: every format that mlx-lm writes, FP8 with a scale a block, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model.checkpoint.load import load
from model.devices.cpu.device import CpuDevice
from model.errors import CheckpointError
from model.forward import Forward
from tests.fakes import tiny

IDS = np.arange(24, dtype=np.uint32)
WIDE = replace(tiny.DENSE, hidden=128, intermediate=128)
FORMATS = [
    *(("affine", group, bits) for group in (32, 64, 128) for bits in (2, 3, 4, 5, 6, 8)),
    ("mxfp4", 32, 4),
    ("mxfp8", 32, 8),
    ("nvfp4", 16, 4),
]


def logits(model: Forward) -> np.ndarray:
    """After a prompt and after a step, which take different products."""
    state = model.new_state()
    read = np.array(model.prefill(state, IDS).logits)
    batch = model.new_batch()
    batch.join(0, state)
    return np.stack([read, np.array(batch.step(mx.array([3], mx.uint32)))[0]])


def assert_close(found: np.ndarray, wanted: np.ndarray, tolerance: float = 2e-4) -> None:
    assert np.abs(found - wanted).max() < tolerance * np.abs(wanted).max()


@pytest.mark.parametrize(("mode", "group_size", "bits"), FORMATS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_l2_every_format_of_mlx_lm_gives_the_logits_of_its_unpacked_weights(
    mode: str, group_size: int, bits: int, tied: bool, tmp_path: Path
) -> None:
    shape = replace(WIDE, tied=tied)
    packed, plain = tiny.write_quantised(tmp_path, shape, mode=mode, group_size=group_size, bits=bits)
    assert_close(logits(load(packed)), logits(load(plain)))


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_l2_packed_experts_give_the_logits_of_their_unpacked_weights(mode: str, tmp_path: Path) -> None:
    packed, plain = tiny.write_quantised(tmp_path, replace(tiny.MOE, hidden=128), mode=mode)
    assert_close(logits(load(packed)), logits(load(plain)))


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_l2_a_tied_packed_head_is_the_embedding_as_a_linear_layer(mode: str, tmp_path: Path) -> None:
    packed, _ = tiny.write_quantised(tmp_path, WIDE, mode=mode)
    model = load(packed)
    hidden = mx.random.normal((1, 3, WIDE.hidden), key=mx.random.key(1))
    found = model._network.head(hidden)
    embedded, _ = model._network.embed(mx.arange(model.config.vocab_size)[None])
    wanted = hidden @ embedded[0].T
    assert_close(np.array(found), np.array(wanted), 1e-5)


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_m2_without_a_dtype_a_packed_model_computes_in_the_dtype_of_its_norms(
    mode: str, tmp_path: Path
) -> None:
    packed, _ = tiny.write_quantised(tmp_path, WIDE, mode=mode)

    class KeepsDtype(CpuDevice):
        dtype = None

    model = load(packed, device=KeepsDtype("a CPU", 2**30, 2))
    assert model.fingerprint.dtype == "float32"
    state = model.new_state()
    model.prefill(state, IDS)
    assert state.kv[0].arrays[0].dtype == mx.float32


def test_m2_a_norm_of_integers_is_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    edit_arrays(path, lambda arrays: arrays | {"model.norm.weight": np.ones(64, np.int32)})
    with pytest.raises(CheckpointError, match=r"norm\.weight is stored as int32"):
        load(path)


# -- FP8 -------------------------------------------------------------------------------------------

BLOCK = (32, 48)


def write_fp8(path: Path, shape: tiny.TinyShape, *, fused: bool = True) -> tuple[Path, Path]:
    """FP8 with a scale a block, as transformers writes it, and the same values in float32 beside it."""
    write = tiny.write_text if fused else tiny.write_single_experts
    source = load_file(write(path / "source", shape) / "model.safetensors")
    packed: dict[str, mx.array] = {}
    plain: dict[str, np.ndarray] = {}
    for name, w in source.items():
        if name.endswith(("proj.weight", "proj_qkv.weight", "proj_z.weight", "gate_up_proj", "down_proj")):
            codes, scales, values = to_fp8(w)
            packed |= {name: codes, name + "_scale_inv": scales}
            plain[name] = values
        else:
            packed[name] = mx.array(w)
            plain[name] = w
    config = tiny.text_config(shape)
    said = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [*BLOCK],
    }
    for folder, fields in (("fp8", {"quantization_config": said}), ("plain", {})):
        (path / folder).mkdir()
        (path / folder / "config.json").write_text(json.dumps(config | fields))
    save_file(plain, path / "plain" / "model.safetensors")
    mx.save_safetensors(str(path / "fp8" / "model.safetensors"), packed)
    rename_types(path / "fp8" / "model.safetensors", "U8", "F8_E4M3")
    return path / "fp8", path / "plain"


def to_fp8(w: np.ndarray) -> tuple[mx.array, mx.array, np.ndarray]:
    """Codes, one scale for each block of the last two axes (those at the end cut), and their meaning."""
    rows, columns = w.shape[-2:]
    grid = -(-rows // BLOCK[0]), -(-columns // BLOCK[1])
    scales = np.random.default_rng(0).uniform(0.01, 0.02, (*w.shape[:-2], *grid)).astype(np.float32)
    spread = scales.repeat(BLOCK[0], -2)[..., :rows, :].repeat(BLOCK[1], -1)[..., :columns]
    codes = mx.to_fp8(mx.array(w / spread))
    return codes, mx.array(scales), np.array(mx.from_fp8(codes, mx.float32)) * spread


def rename_types(file: Path, old: str, new: str) -> None:
    """Give the tensors of one type in a safetensors file another name for it."""
    content = file.read_bytes()
    n_header = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + n_header].replace(f'"{old}"'.encode(), f'"{new}"'.encode())
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + n_header :])


def edit_arrays(path: Path, change: Any) -> None:
    arrays = change(load_file(path / "model.safetensors"))
    save_file(arrays, path / "model.safetensors")


def edit_config(path: Path, **fields: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))


@pytest.mark.parametrize(
    ("shape", "fused"),
    [(tiny.DENSE, True), (tiny.MOE, True), (tiny.MOE, False)],
    ids=["dense", "fused experts", "single experts"],
)
def test_l1_fp8_with_a_scale_a_block_gives_the_logits_of_its_unpacked_weights(
    shape: tiny.TinyShape, fused: bool, tmp_path: Path
) -> None:
    packed, plain = write_fp8(tmp_path, shape, fused=fused)
    assert_close(logits(load(packed)), logits(load(plain)), 1e-5)


def test_l1_fp8_without_its_scales_is_refused(tmp_path: Path) -> None:
    packed, _ = write_fp8(tmp_path, tiny.DENSE)
    arrays = mx.load(str(packed / "model.safetensors"))
    name = "model.layers.0.mlp.up_proj.weight_scale_inv"
    mx.save_safetensors(str(packed / "model.safetensors"), {k: w for k, w in arrays.items() if k != name})
    rename_types(packed / "model.safetensors", "U8", "F8_E4M3")
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        load(packed)


def test_l1_fp8_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    packed, _ = write_fp8(tmp_path, tiny.DENSE)
    config = json.loads((packed / "config.json").read_text())
    edit_config(packed, quantization_config=config["quantization_config"] | {"weight_block_size": [16, 48]})
    with pytest.raises(CheckpointError, match=r"scale_inv has shape \[.*where floating numbers of shape"):
        load(packed)


def test_l1_fp8_that_no_configuration_speaks_of_is_refused(tmp_path: Path) -> None:
    packed, _ = write_fp8(tmp_path, tiny.DENSE)
    edit_config(packed, quantization_config=None)
    with pytest.raises(CheckpointError, match=r"stored as FP8, but config\.json declares no FP8 blocks"):
        load(packed)


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "awq", "bits": 4, "group_size": 128},
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"quant_method": "torchao", "quant_type": "int8wo"},
        {"quant_method": "fbgemm_fp8"},
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "mxfp4"},
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]},
        {"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]},
        {"quant_method": None},
        {"kind": "of tomorrow"},
    ],
    ids=lambda said: str(said.get("quant_method")),
)
@pytest.mark.parametrize("where", ["top", "text_config"])
def test_l1_a_foreign_quantisation_is_refused_in_one_line(
    said: dict[str, Any], where: str, tmp_path: Path
) -> None:
    path = tiny.write_vlm(tmp_path)
    if where == "top":
        edit_config(path, quantization_config=said)
    else:
        text = json.loads((path / "config.json").read_text())["text_config"]
        edit_config(path, text_config=text | {"quantization_config": said})
    with pytest.raises(CheckpointError, match="take a conversion for MLX") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_l1_a_quantisation_told_in_a_file_of_its_own_is_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    (path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(CheckpointError, match="quantised by modelopt"):
        load(path)


@pytest.mark.parametrize(
    "part",
    ["weight_scale", "SCB", "weight_format", "qzeros", "weight.absmax", "bias", "input_scale", "scales"],
)
def test_l1_a_leftover_beside_a_matrix_that_is_used_is_refused(part: str, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    name = f"model.layers.0.mlp.up_proj.{part}"
    edit_arrays(path, lambda arrays: arrays | {name: np.ones(96, np.float32)})
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.up_proj"):
        load(path)


def test_l1_a_leftover_of_the_experts_is_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, tiny.MOE)
    name = "model.layers.0.mlp.experts.gate_up_proj_scale"
    edit_arrays(path, lambda arrays: arrays | {name: np.ones(8, np.float32)})
    with pytest.raises(CheckpointError, match="what it does to it is not known"):
        load(path)


def test_l1_packed_experts_of_another_layout_are_refused(tmp_path: Path) -> None:
    path = tiny.write_single_experts(tmp_path)
    stem = "model.layers.0.mlp.experts.0.up_proj."

    def pack(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        w = arrays.pop(stem + "weight")
        return arrays | {stem + "qweight": w.astype(np.int32), stem + "scales": np.ones(1, np.float32)}

    edit_arrays(path, pack)
    with pytest.raises(CheckpointError, match=r"experts are missing|what it does to it is not known"):
        load(path)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_l1_an_unquantised_matrix_of_integers_is_refused(dtype: type, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    edit_arrays(path, lambda arrays: arrays | {name: arrays[name].astype(dtype)})
    with pytest.raises(CheckpointError, match="an unquantised matrix holds floating numbers"):
        load(path)


@pytest.mark.parametrize("dtype", ["F8_E5M2", "F64", "F4"])
def test_l1_a_type_that_mlx_has_not_is_named(dtype: str, tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    rename_types(path / "model.safetensors", "F32", dtype)
    with pytest.raises(CheckpointError, match=f"is stored as {dtype}, which cannot be read"):
        load(path)


# -- what config.json says against what is stored ------------------------------------------------------


def edit_formats(path: Path, change: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    formats = change(config["quantization"])
    edit_config(path, quantization=formats, quantization_config=formats)


STEM = "language_model.model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("said", [{"group_size": 64, "bits": 8}, {"group_size": 32, "bits": 4}, False])
def test_l4_a_format_that_contradicts_the_stored_matrix_is_refused(said: Any, tmp_path: Path) -> None:
    packed, _ = tiny.write_quantised(tmp_path, WIDE)
    edit_formats(packed, lambda formats: formats | {STEM: said})
    with pytest.raises(
        CheckpointError, match=r"up_proj, which is stored in 4 bits in groups of 64 \(affine\)"
    ):
        load(packed)


def test_l4_a_format_said_of_a_matrix_that_is_not_packed_is_refused(tmp_path: Path) -> None:
    _, plain = tiny.write_quantised(tmp_path, WIDE)
    edit_config(plain, quantization={"group_size": 64, "bits": 4, STEM: {"group_size": 64, "bits": 4}})
    with pytest.raises(CheckpointError, match="is quantised, its weights are not"):
        load(plain)


def test_l4_packed_weights_that_config_json_does_not_mention_are_refused(tmp_path: Path) -> None:
    packed, _ = tiny.write_quantised(tmp_path, WIDE)
    edit_config(packed, quantization=None, quantization_config=None)
    with pytest.raises(CheckpointError, match=r"of which config\.json says nothing"):
        load(packed)


def test_mlx_formats_are_known_under_either_of_their_names(tmp_path: Path) -> None:
    packed, plain = tiny.write_quantised(tmp_path, WIDE)
    edit_config(packed, quantization=None)
    assert_close(logits(load(packed)), logits(load(plain)))


def test_a_matrix_packed_in_no_format_of_mlx_is_refused(tmp_path: Path) -> None:
    packed, _ = tiny.write_quantised(tmp_path, WIDE)
    arrays = mx.load(str(packed / "model.safetensors"))
    del arrays[f"{STEM}.biases"]
    mx.save_safetensors(str(packed / "model.safetensors"), arrays)
    (packed / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match="is packed in no format of MLX"):
        load(packed)
