"""Loads a Qwen3.5-family checkpoint: configuration, weights, adapter, fingerprint.

The modules, quantised layers and LoRA come from mlx-lm; names, layouts and dtype are ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path
from mlx_lm.models import qwen3_5
from mlx_lm.utils import load_adapters, load_model

from model.backend import detect
from model.blas import use_one_thread
from model.checkpoint.config import ModelConfig, read_config, read_json, text_arguments
from model.checkpoint.fingerprint import ModelFingerprint, hash_files
from model.checkpoint.weights import Weights, canonical, parameters, without_leftovers
from model.errors import CheckpointError
from model.forward import Forward

_SMALL_BYTES = 256 << 20  # weights that a step reads from caches rather than from memory, roughly
_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def load(
    path: Path, *, adapter_path: Path | None = None, dtype: str | None = None, kv_bits: int | None = None
) -> Forward:
    """The model in directory ``path``, its weights in memory. Call on the thread that will run it.

    Args:
        path: a directory with ``config.json`` and ``*.safetensors``.
        adapter_path: a directory with a LoRA or DoRA adapter in mlx-lm's format.
        dtype: ``float32``, ``bfloat16`` or ``float16``; None takes what suits the device.
        kv_bits: 8 or 4 to store keys and values in so many bits each; None keeps them in ``dtype``.

    Raises:
        CheckpointError: not a Qwen3.5-family checkpoint, or files are missing or do not fit.
    """
    backend = detect()
    config = read_config(path)
    _check_shards(path)
    model = _load_modules(path, config)
    if adapter_path is not None:
        _load_adapter(model, adapter_path)
    compute = _cast(model, dtype or backend.dtype)
    mx.eval(model.parameters())
    fingerprint = ModelFingerprint(
        model=hash_files([path / "config.json", *path.glob("*.safetensors")]),
        adapter=hash_files(adapter_path.glob("adapter*")) if adapter_path else 0,
        dtype=str(compute).removeprefix("mlx.core."),
        kv_bits=_checked_bits(kv_bits, config),
    )
    forward = Forward(model.language_model, config, fingerprint, backend.kind)
    mx.clear_cache()  # MLX keeps the parts of what was joined: of 70 GB of experts 40
    if backend.kind == "cpu":
        use_one_thread(for_mlx=forward.n_weight_bytes < _SMALL_BYTES)
    return forward


class _TextOnly(qwen3_5.Model):
    """mlx-lm's modules, dense or MoE, filled through our naming of the weights."""

    def sanitize(self, weights: Weights) -> Weights:
        tied = self.language_model.args.tie_word_embeddings
        return without_leftovers(canonical(weights, tied=tied), parameters(self))


class _Arguments:
    @staticmethod
    def from_dict(raw: dict[str, Any]) -> qwen3_5.ModelArgs:
        return qwen3_5.ModelArgs(model_type="qwen3_5", text_config=text_arguments(raw))


def _load_modules(path: Path, config: ModelConfig) -> nn.Module:
    try:
        model, _ = load_model(path, lazy=True, get_model_classes=lambda **_: (_TextOnly, _Arguments))
    except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        reason = _one_line(error)
        raise CheckpointError(f"{path} cannot be loaded as {config.model_type}: {reason}") from error
    return model


def _check_shards(path: Path) -> None:
    """A missing shard is named here: the loader would report every weight that was in it."""
    if not any(path.glob("model*.safetensors")):
        raise CheckpointError(f"{path} holds no model*.safetensors")
    index = path / "model.safetensors.index.json"
    if index.exists():
        shards = set(read_json(index).get("weight_map", {}).values())
        missing = sorted(shard for shard in shards if not (path / shard).exists())
        if missing:
            raise CheckpointError(f"{path} lacks {', '.join(missing)}")


def _load_adapter(model: nn.Module, adapter_path: Path) -> None:
    try:
        load_adapters(model, str(adapter_path))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError) as error:
        reason = _one_line(error)
        raise CheckpointError(f"the adapter in {adapter_path} cannot be loaded: {reason}") from error
    model.eval()


def _cast(model: nn.Module, name: str | None) -> mx.Dtype:
    """Bring floating weights to one dtype (None: the embedding's) and return it; A_log stays float32."""
    embedding = model.language_model.model.embed_tokens
    if name is not None and name not in _DTYPES:
        raise CheckpointError(f"dtype {name!r} is not one of {', '.join(_DTYPES)}")
    stored = (
        embedding.scales.dtype if isinstance(embedding, nn.QuantizedEmbedding) else embedding.weight.dtype
    )
    dtype = _DTYPES[name] if name is not None else stored

    def cast(key: str, w: mx.array) -> mx.array:
        if key.endswith(("A_log", "dt_bias", "global_scale")):
            return w.astype(mx.float32)
        return w.astype(dtype) if mx.issubdtype(w.dtype, mx.floating) else w

    model.update(tree_map_with_path(cast, model.parameters()))
    return dtype


def _checked_bits(kv_bits: int | None, config: ModelConfig) -> int:
    """The width stored keys and values have; 0 for no quantisation."""
    if kv_bits is None:
        return 0
    if kv_bits not in (4, 8):
        raise CheckpointError(f"keys and values can be stored in 8 or 4 bits, not in {kv_bits}")
    if config.head_dim % 32:
        raise CheckpointError(f"heads {config.head_dim} wide do not divide into groups of 32 to quantise")
    return kv_bits


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(". ") or type(error).__name__
    return text if len(text) <= 400 else text[:400] + " ..."
