"""Models of real sizes with random weights."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_5

from model.backend import detect
from model.checkpoint.config import ModelConfig, config_from
from model.checkpoint.fingerprint import ModelFingerprint
from model.forward import Forward

VOCABULARY = 248_320


def _shape(
    hidden: int, layers: int, heads: tuple[int, int], gdn: tuple[int, int], **more: Any
) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5",
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 256,
        "linear_num_key_heads": gdn[0],
        "linear_num_value_heads": gdn[1],
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6,
        "intermediate_size": 1,
        "tie_word_embeddings": True,
        "rope_parameters": {"type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    } | more


_EXPERTS = {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
SHAPES = {
    "0.8B": _shape(1024, 24, (8, 2), (16, 16), intermediate_size=3584),
    "4B": _shape(2560, 32, (16, 4), (16, 32), intermediate_size=9216),
    "35B-A3B": _shape(
        2048,
        40,
        (16, 2),
        (16, 32),
        **_EXPERTS,
        shared_expert_intermediate_size=512,
        tie_word_embeddings=False,
    ),
}


def random_modules(name: str, bits: int) -> tuple[nn.Module, ModelConfig]:
    """mlx-lm's modules of size ``name`` with random bfloat16 (16 bits) or quantised (4 bits) weights."""
    raw = SHAPES[name]
    model = qwen3_5.Model(qwen3_5.ModelArgs(model_type="qwen3_5", text_config=raw))
    model.set_dtype(mx.bfloat16)
    if bits < 16:
        nn.quantize(model, 64, bits)
    for layer in model.language_model.model.layers:
        if layer.is_linear:
            layer.linear_attn.A_log = layer.linear_attn.A_log.astype(mx.float32)
            layer.linear_attn.dt_bias = layer.linear_attn.dt_bias.astype(mx.float32)
        mx.eval(layer.parameters())
    mx.eval(model.parameters())
    return model, config_from(raw)


def forward_over(model: nn.Module, config: ModelConfig) -> Forward:
    """Our passes over mlx-lm's modules, which they take apart: nothing else can use them afterwards."""
    return Forward(model.language_model, config, ModelFingerprint(0, 0, "bfloat16"), detect().kind)
