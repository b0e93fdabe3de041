"""Writes tiny, seeded Qwen3.5-family checkpoints, in every layout a user may bring.

Needs numpy and safetensors only (and MLX for the 4-bit copy), so that ``scripts/goldens`` can make
the same weights beside torch.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class TinyShape:
    """A model that is small but has every part: both layer types, grouped heads, partial rotary."""

    hidden: int = 64
    n_layers: int = 4
    vocab: int = 256
    intermediate: int = 96
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 32
    n_key_heads: int = 2
    n_value_heads: int = 4
    gdn_head_dim: int = 32
    n_experts: int = 0
    tied: bool = True
    max_context: int = 4096

    @property
    def layer_types(self) -> list[str]:
        return ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(self.n_layers)]


DENSE = TinyShape()
MOE = replace(DENSE, n_experts=8, tied=False)
# The size of the model that ships with the package.
DEMO_SIZE = TinyShape(256, 8, 4096, 704, 8, 2, 64, 4, 8, 64)


def text_config(shape: TinyShape) -> dict[str, Any]:
    """The fields of ``config.json``, as a text-only save by transformers has them."""
    config: dict[str, Any] = {
        "model_type": "qwen3_5_moe_text" if shape.n_experts else "qwen3_5_text",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": shape.gdn_head_dim,
        "linear_value_head_dim": shape.gdn_head_dim,
        "linear_num_key_heads": shape.n_key_heads,
        "linear_num_value_heads": shape.n_value_heads,
        "layer_types": shape.layer_types,
        "attention_bias": False,
        "max_position_embeddings": shape.max_context,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [1, 1, 2],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": shape.tied,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    if shape.n_experts:
        config |= {
            "num_experts": shape.n_experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        }
    return config


def weights(shape: TinyShape, seed: int = 0) -> Arrays:
    """Random weights under transformers' names (``model.*``), norms stored as w - 1."""
    random = np.random.default_rng(seed)

    def matrix(*size: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (random.standard_normal(size) * scale / np.sqrt(size[-1])).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        return (random.standard_normal(size) * 0.1).astype(np.float32)

    result: Arrays = {"model.embed_tokens.weight": matrix(shape.vocab, shape.hidden, scale=4.0)}
    for i, kind in enumerate(shape.layer_types):
        prefix = f"model.layers.{i}."
        part = _gdn(shape, matrix, random) if kind == "linear_attention" else _attention(shape, matrix, norm)
        part |= (
            _experts(shape, matrix) if shape.n_experts else _mlp("mlp.", shape.intermediate, shape, matrix)
        )
        part["input_layernorm.weight"] = norm(shape.hidden)
        part["post_attention_layernorm.weight"] = norm(shape.hidden)
        result |= {prefix + name: w for name, w in part.items()}
    result["model.norm.weight"] = norm(shape.hidden)
    if not shape.tied:
        result["lm_head.weight"] = matrix(shape.vocab, shape.hidden, scale=4.0)
    return result


def mtp_weights(shape: TinyShape, seed: int = 0) -> Arrays:
    """Random weights of a multi-token prediction head under Hugging Face's names, norms stored as w - 1."""
    random = np.random.default_rng([seed, 1])

    def matrix(*size: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (random.standard_normal(size) * scale / np.sqrt(size[-1])).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        return (random.standard_normal(size) * 0.1).astype(np.float32)

    layer = _attention(shape, matrix, norm)
    layer |= _experts(shape, matrix) if shape.n_experts else _mlp("mlp.", shape.intermediate, shape, matrix)
    layer |= {f"{name}_layernorm.weight": norm(shape.hidden) for name in ("input", "post_attention")}
    around = {f"{name}.weight": norm(shape.hidden) for name in ("norm", "pre_fc_norm_hidden")}
    # As in the published heads: small before fc, where guessing the form by the numbers goes wrong.
    around["pre_fc_norm_embedding.weight"] = norm(shape.hidden) - 0.6
    around["fc.weight"] = matrix(shape.hidden, 2 * shape.hidden)
    named = around | {f"layers.0.{name}": w for name, w in layer.items()}
    return {f"mtp.{name}": w.astype(np.float32) for name, w in named.items()}


def _gdn(shape: TinyShape, matrix: Any, random: np.random.Generator) -> Arrays:
    key, value = shape.n_key_heads * shape.gdn_head_dim, shape.n_value_heads * shape.gdn_head_dim
    return {
        "linear_attn.in_proj_qkv.weight": matrix(2 * key + value, shape.hidden),
        "linear_attn.in_proj_z.weight": matrix(value, shape.hidden),
        "linear_attn.in_proj_b.weight": matrix(shape.n_value_heads, shape.hidden),
        "linear_attn.in_proj_a.weight": matrix(shape.n_value_heads, shape.hidden),
        "linear_attn.conv1d.weight": matrix(2 * key + value, 1, 4),
        "linear_attn.dt_bias": random.uniform(-4.0, 0.0, shape.n_value_heads).astype(np.float32),
        "linear_attn.A_log": np.log(random.uniform(0.5, 8.0, shape.n_value_heads)).astype(np.float32),
        "linear_attn.norm.weight": (1 + 0.1 * random.standard_normal(shape.gdn_head_dim)).astype(np.float32),
        "linear_attn.out_proj.weight": matrix(shape.hidden, value),
    }


def _attention(shape: TinyShape, matrix: Any, norm: Any) -> Arrays:
    queries, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    return {
        "self_attn.q_proj.weight": matrix(2 * queries, shape.hidden),
        "self_attn.k_proj.weight": matrix(keys, shape.hidden),
        "self_attn.v_proj.weight": matrix(keys, shape.hidden),
        "self_attn.o_proj.weight": matrix(shape.hidden, queries),
        "self_attn.q_norm.weight": norm(shape.head_dim),
        "self_attn.k_norm.weight": norm(shape.head_dim),
    }


def _mlp(prefix: str, width: int, shape: TinyShape, matrix: Any) -> Arrays:
    return {
        prefix + "gate_proj.weight": matrix(width, shape.hidden),
        prefix + "up_proj.weight": matrix(width, shape.hidden),
        prefix + "down_proj.weight": matrix(shape.hidden, width),
    }


def _experts(shape: TinyShape, matrix: Any) -> Arrays:
    return {
        "mlp.gate.weight": matrix(shape.n_experts, shape.hidden),
        "mlp.experts.gate_up_proj": matrix(shape.n_experts, 64, shape.hidden),
        "mlp.experts.down_proj": matrix(shape.n_experts, shape.hidden, 32),
        "mlp.shared_expert_gate.weight": matrix(1, shape.hidden),
    } | _mlp("mlp.shared_expert.", 32, shape, matrix)


def write_text(path: Path, shape: TinyShape = DENSE, seed: int = 0, n_shards: int = 1) -> Path:
    """Hugging Face layout, text only (``qwen3_5_text``, ``model.*``), in ``n_shards`` files."""
    return _write(path, text_config(shape), weights(shape, seed), n_shards)


def write_vlm(path: Path, shape: TinyShape = DENSE, seed: int = 0) -> Path:
    """Hugging Face layout of a vision-language checkpoint, with the tower and the MTP head along."""
    config = {
        "model_type": "qwen3_5_moe" if shape.n_experts else "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": text_config(shape),
        "vision_config": {"depth": 1},
        "tie_word_embeddings": shape.tied,
    }
    named = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: w
        for name, w in weights(shape, seed).items()
    }
    extra = np.ones((4, 4), np.float32)
    named |= {
        "model.visual.blocks.0.attn.qkv.weight": extra,
        "mtp.fc.weight": extra,
        "mtp.norm.weight": extra,
    }
    return _write(path, config, named)


def write_with_mtp(path: Path, shape: TinyShape = DENSE, seed: int = 0) -> Path:
    """Hugging Face layout, text only, with a whole multi-token prediction head."""
    config = text_config(shape) | {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    return _write(path, config, weights(shape, seed) | mtp_weights(shape, seed))


def write_mlx_with_mtp(path: Path, shape: TinyShape = DENSE, prefix: str = "language_model.mtp.") -> Path:
    """MLX layout with a converted head, under ``prefix``."""
    head = {prefix + name: w for name, w in mlx_mtp_weights(shape).items()}
    return _write(
        path, {"model_type": "qwen3_5", "text_config": text_config(shape)}, mlx_weights(shape) | head
    )


def write_sidecar(path: Path, shape: TinyShape = DENSE, bits: int = 0) -> tuple[Path, Path]:
    """A converted head in a directory of its own, its matrices stored in ``bits`` bits (0: whole); and one in
    Hugging Face's form with the same values."""
    import mlx.core as mx

    stored: dict[str, mx.array] = {}
    values = dict(mtp_weights(shape))
    for name, w in mlx_mtp_weights(shape).items():
        if bits and w.ndim == 2 and "shared_expert_gate" not in name:
            q, scales, biases = mx.quantize(mx.array(w), 32, bits)
            stem = name.removesuffix("weight")
            stored |= {name: q, stem + "scales": scales, stem + "biases": biases}
            values["mtp." + name] = np.array(mx.dequantize(q, scales, biases, 32, bits))
        else:
            stored[name] = mx.array(w)
    config: dict[str, Any] = {"model_type": "qwen3_5_mtp", "text_config": text_config(shape)}
    if bits:
        config["quantization"] = {"group_size": 32, "bits": bits}
    converted = _write(path / "converted", config, {})
    mx.save_safetensors(str(converted / "model.safetensors"), stored)
    return converted, _write(path / "raw", config | {"quantization": None}, values)


def mlx_mtp_weights(shape: TinyShape, seed: int = 0) -> Arrays:
    """The head's weights in MLX's forms, under bare names."""
    result: Arrays = {}
    for name, w in mtp_weights(shape, seed).items():
        name = name.removeprefix("mtp.")
        if name.endswith("experts.gate_up_proj"):
            stem = name.replace("experts.gate_up_proj", "switch_mlp.")
            result[stem + "gate_proj.weight"], result[stem + "up_proj.weight"] = (
                np.ascontiguousarray(half) for half in np.split(w, 2, axis=1)
            )
            continue
        result[name.replace("experts.down_proj", "switch_mlp.down_proj.weight")] = w + 1 if w.ndim == 1 else w
    return result


def write_single_experts(path: Path, shape: TinyShape = MOE, seed: int = 0) -> Path:
    """Hugging Face layout with one tensor for each expert's matrix, as older conversions have it."""
    result: Arrays = {}
    for name, w in weights(shape, seed).items():
        stem = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        for i in range(shape.n_experts if stem.endswith("experts.") else 0):
            if name.endswith("gate_up_proj"):
                gate, up = np.split(w[i], 2)
                result |= {f"{stem}{i}.gate_proj.weight": gate.copy(), f"{stem}{i}.up_proj.weight": up.copy()}
            else:
                result[f"{stem}{i}.down_proj.weight"] = w[i].copy()
        if not stem.endswith("experts."):
            result[name] = w
    return _write(path, text_config(shape), result)


def write_mlx(path: Path, shape: TinyShape = DENSE, seed: int = 0) -> Path:
    """MLX layout: ``language_model.model.*``, convolutions [C, K, 1], norms as they are used."""
    config = {"model_type": "qwen3_5", "text_config": text_config(shape)}
    return _write(path, config, mlx_weights(shape, seed))


def mlx_weights(shape: TinyShape, seed: int = 0) -> Arrays:
    """The same weights under MLX names and in MLX's forms."""
    result: Arrays = {}
    for name, w in weights(shape, seed).items():
        if name.endswith("experts.gate_up_proj"):
            stem = "language_model." + name.replace("experts.gate_up_proj", "switch_mlp.")
            result[stem + "gate_proj.weight"], result[stem + "up_proj.weight"] = (
                np.ascontiguousarray(half) for half in np.split(w, 2, axis=1)
            )
            continue
        if name.endswith("conv1d.weight"):
            w = np.ascontiguousarray(np.moveaxis(w, 2, 1))
        if name.endswith(("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")):
            w = w + 1
        result["language_model." + name.replace("experts.down_proj", "switch_mlp.down_proj.weight")] = w
    return result


def write_4bit(path: Path, shape: TinyShape = DENSE, seed: int = 0) -> tuple[Path, Path]:
    """A 4-bit MLX checkpoint, and the same values written out in float32 beside it."""
    import mlx.core as mx

    packed: dict[str, mx.array] = {}
    plain: Arrays = {}
    for name, w in mlx_weights(shape, seed).items():
        if name.endswith(
            ("proj.weight", "proj_qkv.weight", "proj_z.weight", "embed_tokens.weight", "lm_head.weight")
        ):
            q, scales, biases = mx.quantize(mx.array(w), 32, 4)
            stem = name.removesuffix("weight")
            packed |= {name: q, stem + "scales": scales, stem + "biases": biases}
            plain[name] = np.array(mx.dequantize(q, scales, biases, 32, 4))
        else:
            packed[name] = mx.array(w)
            plain[name] = w
    config = {"model_type": "qwen3_5", "text_config": text_config(shape)}
    float_path = _write(path / "float", config, plain)
    bits_path = _write(path / "4bit", config | {"quantization": {"group_size": 32, "bits": 4}}, {})
    mx.save_safetensors(str(bits_path / "model.safetensors"), packed)
    return bits_path, float_path


def write_quantised(
    path: Path,
    shape: TinyShape,
    *,
    mode: str = "affine",
    group_size: int | None = None,
    bits: int | None = None,
) -> tuple[Path, Path]:
    """What mlx-lm's converter makes of the checkpoint, and the same values written out beside it.

    Returns:
        The quantised checkpoint in its own words, and a plain one of the same matrices in float32.
    """
    import mlx.core as mx
    from mlx_lm.utils import dequantize_model, load_model, quantize_model, save_config, save_model

    for name, change in (("packed", None), ("plain", dequantize_model)):
        model, config = load_model(write_mlx(path / "source", shape))
        model, config = quantize_model(model, config, group_size, bits, mode)
        if change is not None:
            model = change(model)
            model.apply(lambda w: w.astype(mx.float32) if mx.issubdtype(w.dtype, mx.floating) else w)
            del config["quantization"], config["quantization_config"]
        (path / name).mkdir()
        save_model(path / name, model)
        save_config(config, path / name / "config.json")
    return path / "packed", path / "plain"


def copy_tokenizer(source: Path, target: Path) -> None:
    """Put the tokenizer and the chat template of one checkpoint into another."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)


def _write(path: Path, config: dict[str, Any], arrays: Arrays, n_shards: int = 1) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    if n_shards == 1:
        if arrays:
            save_file(arrays, path / "model.safetensors")
        return path
    names = sorted(arrays)
    where: dict[str, str] = {}
    for i in range(n_shards):
        file = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        part = names[i::n_shards]
        save_file({name: arrays[name] for name in part}, path / file)
        where |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return path
