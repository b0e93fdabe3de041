"""Models of real sizes with random weights."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_5
from shape_table import SHAPES

from model.backend import detect
from model.checkpoint.config import ModelConfig, config_from
from model.checkpoint.fingerprint import ModelFingerprint
from model.forward import Forward


def random_modules(name: str, bits: int) -> tuple[nn.Module, ModelConfig]:
    """mlx-lm's modules of size ``name`` with random plain (16 bits) or quantised (8 or 4 bits) weights, in
    the dtype that the device computes in.

    Nothing is computed before the end, and then a layer at a time: of the wide numbers that a weight is made
    from, no more than one layer's are there at once.
    """
    raw = SHAPES[name]
    model = qwen3_5.Model(qwen3_5.ModelArgs(model_type="qwen3_5", text_config=raw))
    model.set_dtype(getattr(mx, _dtype()))
    if bits < 16:
        rule = model.quant_predicate  # routers keep more bits

        def quantised(path: str, module: nn.Module) -> Any:
            return hasattr(module, "to_quantized") and (rule is None or rule(path, module))

        nn.quantize(model, 64, bits, class_predicate=quantised)
    for layer in model.language_model.model.layers:
        if layer.is_linear:
            layer.linear_attn.A_log = layer.linear_attn.A_log.astype(mx.float32)
            layer.linear_attn.dt_bias = layer.linear_attn.dt_bias.astype(mx.float32)
        mx.eval(layer.parameters())
    mx.eval(model.parameters())
    mx.clear_cache()
    return model, config_from(raw)


def forward_over(model: nn.Module, config: ModelConfig) -> Forward:
    """Our passes over mlx-lm's modules, which they take apart: nothing else can use them afterwards."""
    forward = Forward(model.language_model, config, ModelFingerprint(0, 0, _dtype()), detect())
    mx.clear_cache()  # the parts of what was joined
    return forward


def _dtype() -> str:
    return detect().dtype or "bfloat16"
