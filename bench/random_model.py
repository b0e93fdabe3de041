"""Models of real sizes with random weights."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_5
from shape_table import SHAPES

from model.backend import detect
from model.checkpoint.config import ModelConfig, config_from
from model.checkpoint.fingerprint import ModelFingerprint
from model.forward import Forward


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
