"""Shapes of published models, as their config.json has them, and two tiny ones to try a script with."""

from __future__ import annotations

from typing import Any

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
    "tiny": _shape(128, 4, (2, 1), (2, 2), intermediate_size=256, vocab_size=1000),
    "tiny-MoE": _shape(
        128,
        4,
        (2, 1),
        (2, 4),
        **_EXPERTS | {"num_experts": 64, "moe_intermediate_size": 64},
        shared_expert_intermediate_size=64,
        tie_word_embeddings=False,
        vocab_size=1000,
    ),
}
