"""Reads ``config.json`` of a Qwen3.5-family checkpoint into one frozen description."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.checkpoint.rope import context_limit, rope_of
from model.errors import CheckpointError

LayerType = Literal["linear_attention", "full_attention"]
Raw = dict[str, Any]

MODEL_TYPES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_INTERVAL = 4  # what transformers takes when config.json leaves it out


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one model.

    Attributes:
        layer_types: one per layer, in order.
        kv_dim: width of the keys (and of the values) of one token in one full-attention layer.
        conv_dim: width of the q, k, v rows that pass the convolution of one GDN layer.
        max_context: tokens the model was made for (``max_position_embeddings``), or is stretched to by
            the scaling of its positions (YaRN's factor times the original).
        tie_word_embeddings: the output matrix is the embedding. From ``config.json`` alone this is a claim;
            :func:`~model.checkpoint.load.load` settles it by the stored weights.
        eos_token_ids: ids that end a reply, from ``generation_config.json`` and ``config.json``.
        n_experts: 0 for a dense model.
        n_chosen: of the experts, those that each token passes.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    n_layers: int
    layer_types: tuple[LayerType, ...]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_key_heads: int
    n_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    max_context: int
    rope_theta: float
    partial_rotary_factor: float
    tie_word_embeddings: bool
    n_experts: int
    n_chosen: int
    eos_token_ids: tuple[int, ...]

    @property
    def n_full_attention_layers(self) -> int:
        return self.layer_types.count("full_attention")

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.n_key_heads * self.key_head_dim + self.n_value_heads * self.value_head_dim


def read_json(path: Path) -> Raw:
    """One JSON object from a file.

    Raises:
        CheckpointError: the file is missing or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return value


def read_config(path: Path) -> ModelConfig:
    """The configuration of the checkpoint in directory ``path``.

    Raises:
        CheckpointError: no readable ``config.json``, another kind of model, or a missing field.
    """
    raw = read_json(path / "config.json")
    generation = path / "generation_config.json"
    try:
        return config_from(raw, read_json(generation) if generation.exists() else {})
    except CheckpointError as error:
        raise CheckpointError(f"{path}/config.json: {error}") from error


def config_from(raw: Raw, generation: Raw | None = None) -> ModelConfig:
    """The same from the contents of ``config.json`` and ``generation_config.json``."""
    model_type = raw.get("model_type")
    if model_type not in MODEL_TYPES:
        raise CheckpointError(f"model_type {model_type!r} is not one of {', '.join(MODEL_TYPES)}")
    text = text_arguments(raw)
    try:
        rope = text["rope_parameters"]
        return ModelConfig(
            model_type=model_type,
            vocab_size=text["vocab_size"],
            hidden_size=text["hidden_size"],
            n_layers=text["num_hidden_layers"],
            layer_types=_layer_types(text),
            n_heads=text["num_attention_heads"],
            n_kv_heads=text["num_key_value_heads"],
            head_dim=text["head_dim"],
            n_key_heads=text["linear_num_key_heads"],
            n_value_heads=text["linear_num_value_heads"],
            key_head_dim=text["linear_key_head_dim"],
            value_head_dim=text["linear_value_head_dim"],
            conv_kernel=text["linear_conv_kernel_dim"],
            max_context=context_limit(text, rope),
            rope_theta=float(rope["rope_theta"]),
            partial_rotary_factor=float(rope["partial_rotary_factor"]),
            tie_word_embeddings=text["tie_word_embeddings"],
            n_experts=text.get("num_experts") or 0,
            n_chosen=text.get("num_experts_per_tok") or 0,
            eos_token_ids=_eos_token_ids(generation or {}, raw, text),
        )
    except KeyError as error:
        raise CheckpointError(f"lacks {error.args[0]!r}") from error


def text_arguments(raw: Raw) -> Raw:
    """The language model's fields of a raw ``config.json``, complete enough for mlx-lm's arguments.

    mlx-lm takes a default ``rope_theta`` when ``rope_parameters`` is absent, even if the older
    top-level ``rope_theta`` is there, and knows ``full_attention_interval`` but not ``layer_types``.

    Raises:
        CheckpointError: the positions' parameters contradict each other or are not supported.
    """
    text: Raw = dict(raw.get("text_config") or raw)
    text["rope_parameters"] = rope_of(text, raw)
    # A vision-language config carries the flag at the top, a text-only one beside the other fields. Where
    # both do and differ, the stored weights decide.
    text["tie_word_embeddings"] = any(bool(part.get("tie_word_embeddings")) for part in (text, raw))
    types = text.get("layer_types")
    if types and "full_attention" in types:
        text["full_attention_interval"] = types.index("full_attention") + 1
    elif types:
        text["full_attention_interval"] = len(types) + 1
    text.setdefault("full_attention_interval", _INTERVAL)
    return text


def _layer_types(text: Raw) -> tuple[LayerType, ...]:
    interval = text["full_attention_interval"]
    types: tuple[LayerType, ...] = tuple(
        "linear_attention" if (i + 1) % interval else "full_attention"
        for i in range(text["num_hidden_layers"])
    )
    if (stated := text.get("layer_types")) and tuple(stated) != types:
        raise CheckpointError(
            f"layer_types does not repeat with a full-attention layer every {interval} layers"
        )
    if text.get("hidden_act", "silu") != "silu" or not text.get("attn_output_gate", True):
        raise CheckpointError("only silu activations and gated attention outputs are supported")
    return types


def _eos_token_ids(*sources: Raw) -> tuple[int, ...]:
    found: list[int] = []
    for source in sources:
        ids = source.get("eos_token_id")
        found.extend(ids if isinstance(ids, list) else [ids] if ids is not None else [])
    return tuple(dict.fromkeys(found))
