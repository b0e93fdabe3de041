"""Loading: what a checkpoint may bring along, and what is refused in one line."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import model.checkpoint.load as loading
from model.checkpoint.config import read_config
from model.checkpoint.load import load
from model.errors import CheckpointError
from model.forward import Forward
from tests.fakes import tiny

IDS = np.arange(40, dtype=np.uint32)


def logits(model: Forward) -> np.ndarray:
    return np.array(model.prefill(model.new_state(), IDS).logits)


def edit_config(path: Path, **fields: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    kept = {key: value for key, value in (config | fields).items() if value is not None}
    (path / "config.json").write_text(json.dumps(kept))


def test_h01_vision_weights_are_ignored_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="crossturn.model"):
        load(tiny.write_vlm(tmp_path))
    told = [record.message for record in caplog.records]
    assert told == ["the checkpoint's 1 vision weights are ignored: this server reads and writes text"]


def test_h01_unknown_leftovers_are_listed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tiny.write_text(tmp_path)
    arrays = load_file(path / "model.safetensors")
    extra = np.zeros(3, np.float32)
    save_file(arrays | {"model.rotary.inv_freq": extra, "model.extra": extra}, path / "model.safetensors")
    with caplog.at_level(logging.INFO, logger="crossturn.model"):
        load(path)
    assert len(caplog.records) == 1
    assert "2 weights" in caplog.records[0].message
    assert "language_model.model.extra" in caplog.records[0].message


def test_norms_are_shifted_once_when_transformers_saved_and_never_when_mlx_did(tmp_path: Path) -> None:
    stored = tiny.weights(tiny.DENSE)["model.norm.weight"]
    for write, name in ((tiny.write_text, "text"), (tiny.write_mlx, "mlx"), (tiny.write_vlm, "vlm")):
        model = load(write(tmp_path / name))
        assert np.allclose(model.weights["model.norm.weight"], stored + 1, atol=1e-6), name


def test_a_mixture_of_layouts_is_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    arrays = load_file(path / "model.safetensors")
    name = "model.layers.0.linear_attn.conv1d.weight"
    arrays[name] = np.ascontiguousarray(np.moveaxis(arrays[name], 2, 1))
    save_file(arrays, path / "model.safetensors")
    with pytest.raises(CheckpointError, match="mix two checkpoint layouts"):
        load(path)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    arrays = load_file(path / "model.safetensors")
    del arrays["model.layers.1.mlp.up_proj.weight"]
    save_file(arrays, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load(path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path, n_shards=2)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks model-00002-of-00002"):
        load(path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no model"):
        load(path)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is not one of qwen3_5"),
        ({"vocab_size": None}, "lacks 'vocab_size'"),
        ({"layer_types": ["full_attention", "linear_attention"] * 2}, "does not repeat"),
        ({"hidden_act": "gelu"}, "silu"),
    ],
)
def test_a_config_of_another_kind_is_refused_in_one_line(
    fields: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tiny.write_text(tmp_path)
    edit_config(path, **fields)
    with pytest.raises(CheckpointError, match=told) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    (path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        load(path)


def test_rope_theta_of_an_older_config_is_not_replaced_by_a_default(tmp_path: Path) -> None:
    wanted = logits(load(tiny.write_text(tmp_path / "new")))
    older = tiny.write_text(tmp_path / "old")
    edit_config(older, rope_parameters=None, rope_theta=10_000_000.0, partial_rotary_factor=0.25)
    assert read_config(older).rope_theta == 10_000_000.0
    assert np.array_equal(logits(load(older)), wanted)


def test_l4_a_head_that_differs_from_the_embedding_is_used_whatever_the_configuration_ties(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    untied = replace(tiny.DENSE, tied=False)
    wanted = logits(load(tiny.write_text(tmp_path / "untied", untied)))
    path = tiny.write_text(tmp_path / "tied", untied)
    edit_config(path, tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING, logger="crossturn.model"):
        model = load(path)
    assert np.array_equal(logits(model), wanted)
    assert not model.config.tie_word_embeddings
    assert ["a different lm_head is stored" in record.message for record in caplog.records] == [True]


def test_l4_a_stored_copy_of_a_tied_embedding_is_dropped(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    wanted = logits(load(path))
    arrays = load_file(path / "model.safetensors")
    save_file(arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]}, path / "model.safetensors")
    model = load(path)
    assert model.config.tie_word_embeddings
    assert np.array_equal(logits(model), wanted)


def test_l4_an_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    edit_config(path, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lack language_model\.lm_head\.weight"):
        load(path)


@pytest.mark.parametrize("tied", [True, False])
def test_l4_where_two_flags_differ_the_stored_head_decides(tied: bool, tmp_path: Path) -> None:
    path = tiny.write_vlm(tmp_path, replace(tiny.DENSE, tied=tied))
    wanted = logits(load(path))
    edit_config(path, tie_word_embeddings=not tied)
    assert np.array_equal(logits(load(path)), wanted)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"num_hidden_layers": 3, "layer_types": None}, r"num_hidden_layers 3, but .*layers\.3\."),
        ({"num_hidden_layers": 8, "layer_types": None}, r"the weights lack .*layers\.4\."),
        (
            {"vocab_size": 300},
            r"embed_tokens\.weight has shape \[256, 64\], where config\.json asks for \[300",
        ),
        ({"intermediate_size": 64}, r"has shape"),
        ({"attention_bias": True}, r"the weights lack .*bias"),
        ({"linear_conv_kernel_dim": 3}, r"conv1d\.weight has shape"),
        ({"hidden_size": "wide"}, r"cannot be loaded as qwen3_5_text"),
    ],
)
def test_l4_a_configuration_that_contradicts_the_stored_weights_is_refused(
    fields: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tiny.write_text(tmp_path)
    edit_config(path, **fields)
    with pytest.raises(CheckpointError, match=told) as caught:
        load(path)
    assert "\n" not in str(caught.value)


ROPE = tiny.text_config(tiny.DENSE)["rope_parameters"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 4096),
        ({"max_position_embeddings": 32768, "rope_parameters": ROPE | YARN}, 131072),
        ({"max_position_embeddings": 131072, "rope_parameters": ROPE | YARN}, 131072),
        ({"max_position_embeddings": 32768, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 32768, "rope_parameters": None, "rope_scaling": YARN}, 131072),
        ({"rope_parameters": ROPE | {"rope_type": "yarn", "factor": 2.5}}, 10240),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}, 4096),
    ],
)
def test_l6_the_limit_is_the_factor_times_the_original_where_positions_are_stretched(
    fields: dict[str, Any], limit: int, tmp_path: Path
) -> None:
    path = tiny.write_text(tmp_path)
    edit_config(path, **fields)
    assert read_config(path).max_context == limit


def test_l6_rope_scaling_beside_rope_parameters_turns_positions_as_inside_them(tmp_path: Path) -> None:
    inside, beside, none = (tiny.write_text(tmp_path / name) for name in ("inside", "beside", "none"))
    edit_config(inside, rope_parameters=ROPE | YARN)
    edit_config(beside, rope_scaling=YARN)
    found, wanted = logits(load(beside)), logits(load(inside))
    assert np.array_equal(found, wanted)
    assert not np.allclose(found, logits(load(none)), atol=1e-3)


def test_l6_yarn_turns_and_scales_as_its_definition_says(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    edit_config(path, rope_parameters=ROPE | YARN | {"attention_factor": 1.3})
    rope = load(path)._network.blocks[3].mixer._block.rope
    dims, base = 8, 10_000_000.0
    x = np.random.default_rng(0).standard_normal((1, 1, 1, 32)).astype(np.float32)
    turned = np.array(rope(mx.array(x), offset=1000))[0, 0, 0]
    rates = base ** (-np.arange(dims // 2) / (dims // 2))
    bounds = [dims * np.log(32768 / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (32, 1)]
    low, high = max(np.floor(bounds[0]), 0), min(np.ceil(bounds[1]), dims - 1)
    stretched = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
    angles = 1000 * (rates / 4 * stretched + rates * (1 - stretched))
    a, b = x[0, 0, 0, :4], x[0, 0, 0, 4:8]
    wanted = 1.3 * np.concatenate(
        [a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)]
    )
    assert np.allclose(turned[:8], wanted, atol=2e-3)
    assert np.array_equal(turned[8:], x[0, 0, 0, 8:])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not one of"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope type 'longrope' is not one of"),
        ({"rope_scaling": {"type": "yarn"}}, "needs a factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, "needs a factor"),
        ({"rope_scaling": YARN | {"truncate": False}}, "truncate"),
        ({"rope_scaling": "yarn"}, "rope_scaling is not an object"),
        ({"rope_parameters": ROPE | YARN, "rope_scaling": YARN | {"factor": 2}}, r"contradict .*\(factor\)"),
        ({"rope_parameters": ROPE | YARN, "rope_scaling": {"type": "linear", "factor": 4.0}}, "linear, yarn"),
        ({"rope_scaling": {"rope_theta": 5.0}}, r"contradict each other \(rope_theta\)"),
    ],
)
def test_l6_positions_that_cannot_be_turned_so_are_refused(
    fields: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tiny.write_text(tmp_path)
    edit_config(path, **fields)
    with pytest.raises(CheckpointError, match=told):
        read_config(path)


def test_stop_tokens_come_from_both_configs(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_config(path).eos_token_ids == (7, 2)


def test_the_fingerprint_follows_every_byte_of_the_weights_and_nothing_else(tmp_path: Path) -> None:
    first = load(tiny.write_text(tmp_path / "first")).fingerprint
    again = load(tiny.write_text(tmp_path / "again")).fingerprint
    other = tiny.write_text(tmp_path / "other")
    arrays = load_file(other / "model.safetensors")
    arrays["model.embed_tokens.weight"][0, 0] += 1e-3
    save_file(arrays, other / "model.safetensors")
    assert first == again
    assert load(other).fingerprint.model != first.model


def write_adapter(path: Path, scale: float) -> Path:
    """A LoRA adapter in mlx-lm's format on one projection of the last two layers."""
    path.mkdir()
    random = np.random.default_rng(3)
    arrays = {}
    for layer in (2, 3):
        stem = f"language_model.model.layers.{layer}.mlp.up_proj."
        arrays[stem + "lora_a"] = (random.standard_normal((64, 4)) * scale).astype(np.float32)
        arrays[stem + "lora_b"] = random.standard_normal((4, 96)).astype(np.float32)
    save_file(arrays, path / "adapters.safetensors")
    parameters = {"rank": 4, "scale": 2.0, "dropout": 0.0, "keys": ["mlp.up_proj"]}
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": parameters}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def test_an_adapter_changes_the_logits_as_its_merged_weights_would(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", scale=0.3)
    lora = load_file(adapter / "adapters.safetensors")
    arrays = load_file(path / "model.safetensors")
    for layer in (2, 3):
        stem = f"model.layers.{layer}.mlp.up_proj."
        a, b = (lora[f"language_model.{stem}{name}"] for name in ("lora_a", "lora_b"))
        arrays[stem + "weight"] = arrays[stem + "weight"] + 2.0 * (a @ b).T
    merged = tiny.write_text(tmp_path / "merged")
    save_file(arrays, merged / "model.safetensors")
    adapted = load(path, adapter_path=adapter)
    found, wanted, plain = logits(adapted), logits(load(merged)), logits(load(path))
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert np.abs(found - plain).max() > 1e-2 * np.abs(wanted).max()


def test_an_adapter_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path / "base")
    one, two = (load(path, adapter_path=write_adapter(tmp_path / str(s), s)).fingerprint for s in (0.1, 0.2))
    assert load(path).fingerprint.adapter == 0
    assert one.model == two.model
    assert one.adapter != two.adapter


def test_an_adapter_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", 0.1)
    arrays = load_file(adapter / "adapters.safetensors")
    save_file({name: np.concatenate([w, w]) for name, w in arrays.items()}, adapter / "adapters.safetensors")
    with pytest.raises(CheckpointError, match="adapter") as caught:
        load(path, adapter_path=adapter)
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        load(path, adapter_path=tmp_path / "nowhere")


def test_an_adapter_of_peft_is_told_from_one_of_mlx_lm(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    with pytest.raises(CheckpointError, match="is one of PEFT"):
        load(tiny.write_text(tmp_path / "base"), adapter_path=adapter)


def test_bfloat16_computes_in_bfloat16_with_a_float32_recurrent_state(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    exact, model = logits(load(path)), load(path, dtype="bfloat16")
    state = model.new_state()
    found = np.array(model.prefill(state, IDS).logits)
    assert state.kv[0].arrays[0].dtype == mx.bfloat16
    assert state.recurrent[0].matrix.dtype == mx.float32
    assert np.abs(found - exact).max() < 0.1 * np.abs(exact).max()


def test_m8_float16_is_nearer_to_float32_than_bfloat16_is(tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path)
    exact = logits(load(path))
    half, brain = (np.abs(logits(load(path, dtype=dtype)) - exact).max() for dtype in ("float16", "bfloat16"))
    assert 0 < half < brain / 3


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="dtype 'int3'"):
        load(tiny.write_text(tmp_path), dtype="int3")


def test_progress_ends_with_all_bytes_of_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_READ_BYTES", 40_000)
    told: list[tuple[int, int]] = []
    model = load(tiny.write_text(tmp_path), on_progress=lambda *progress: told.append(progress))
    assert len(told) > 3
    assert told == sorted(told)
    assert told[-1] == (model.n_weight_bytes, model.n_weight_bytes)
