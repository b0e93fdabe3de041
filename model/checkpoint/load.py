"""Loads a Qwen3.5-family checkpoint: configuration, weights, adapter, fingerprint.

The modules, quantised layers and LoRA come from mlx-lm; names, layouts and dtype are ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path
from mlx_lm.models import qwen3_5
from mlx_lm.utils import load_adapters

from model.backend import detect
from model.checkpoint.config import ModelConfig, read_config, read_json, text_arguments
from model.checkpoint.fingerprint import ModelFingerprint, hash_files
from model.checkpoint.hashes import HashMemory
from model.checkpoint.mtp import find_head
from model.checkpoint.quantisation import declared_in, quantise_modules, without_fp8
from model.checkpoint.shards import INDEX, Shards, read_shards
from model.checkpoint.weights import (
    canonical,
    check_parameters,
    parameters,
    ties,
    without_head,
    without_leftovers,
)
from model.device import Device
from model.errors import CheckpointError
from model.forward import Forward

_log = logging.getLogger("crossturn.model")

Progress = Callable[[int, int], None]

_READ_BYTES = 1 << 28
_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def load(
    path: Path,
    *,
    adapter_path: Path | None = None,
    mtp_path: Path | None = None,
    has_mtp: bool = False,
    dtype: str | None = None,
    kv_bits: int | None = None,
    hashes_file: Path | None = None,
    device: Device | None = None,
    on_progress: Progress | None = None,
) -> Forward:
    """The model in directory ``path``, its weights in memory. Call on the thread that will run it.

    Args:
        path: a directory with ``config.json`` and ``*.safetensors``.
        adapter_path: a directory with a LoRA or DoRA adapter in mlx-lm's format.
        mtp_path: a directory with a multi-token prediction head; None for the checkpoint's own, if any.
        has_mtp: whether such a head is wanted.
        dtype: ``float32``, ``bfloat16`` or ``float16``; None takes what suits the device.
        kv_bits: 8 or 4 to store keys and values in so many bits each; None keeps them in ``dtype``.
        hashes_file: a small file that remembers the weights' hash; None reads them all to hash them.
        device: what runs it; None for the one that MLX uses.
        on_progress: told how many bytes of how many are read.

    Raises:
        CheckpointError: not a Qwen3.5-family checkpoint, or files are missing or do not fit.
    """
    device = device or detect()
    device.begin_loading()
    modules = read_modules(
        path, adapter_path=adapter_path, mtp_path=mtp_path, has_mtp=has_mtp, dtype=dtype or device.dtype
    )
    evaluate(modules.model, on_progress)
    hash_ = HashMemory(hashes_file).hash_files if hashes_file else hash_files
    of_model = hash_([path / "config.json", *modules.files])
    fingerprint = ModelFingerprint(
        model=of_model,
        adapter=hash_files(adapter_path.glob("adapter*")) if adapter_path else 0,
        dtype=modules.dtype,
        kv_bits=_checked_bits(kv_bits, modules.config),
        mtp=_hash_of_head(modules, of_model, hash_),
    )
    forward = Forward(modules.model.language_model, modules.config, fingerprint, device)
    mx.clear_cache()  # MLX keeps the parts of what was joined: of 70 GB of experts 40
    return forward


@dataclass(frozen=True, slots=True)
class Modules:
    """mlx-lm's modules with a checkpoint's weights, which are read when something is computed of them.

    Attributes:
        model: the whole, as mlx-lm calls it.
        config: with what the stored weights settle.
        dtype: what it computes in.
        files: that hold the weights.
        mtp_files: that hold the weights of its head, where it has one.
    """

    model: nn.Module
    config: ModelConfig
    dtype: str
    files: tuple[Path, ...]
    mtp_files: tuple[Path, ...] = ()


def read_modules(
    path: Path,
    *,
    adapter_path: Path | None = None,
    mtp_path: Path | None = None,
    has_mtp: bool = False,
    dtype: str | None = None,
) -> Modules:
    """The modules of the checkpoint in ``path``; arguments and errors as of :func:`load`."""
    config = read_config(path)
    shards = read_shards(path)
    model, tied = _filled_modules(path, config, shards)
    if adapter_path is not None:
        _load_adapter(model, adapter_path)
    mtp_files = _add_head(model, path, mtp_path) if has_mtp else ()
    compute = str(_cast(model, dtype)).removeprefix("mlx.core.")
    return Modules(model, replace(config, tie_word_embeddings=tied), compute, shards.files, mtp_files)


def evaluate(model: nn.Module, on_progress: Progress | None = None) -> None:
    """Read the weights, some at a time: what unpacking and joining leave behind is given back in between."""
    weights = list(parameters(model).values())
    n_total, n_done = sum(w.nbytes for w in weights), 0
    group: list[mx.array] = []
    for w in weights:
        group.append(w)
        if sum(member.nbytes for member in group) >= _READ_BYTES or w is weights[-1]:
            mx.eval(group)
            mx.clear_cache()
            n_done += sum(member.nbytes for member in group)
            group = []
            if on_progress is not None:
                on_progress(n_done, n_total)


def _filled_modules(path: Path, config: ModelConfig, shards: Shards) -> tuple[nn.Module, bool]:
    """mlx-lm's modules, dense or MoE, with the stored weights in them, not yet evaluated; and whether the
    output matrix is the embedding."""
    raw = read_json(path / "config.json")
    try:
        declared = declared_in(raw, path)
        weights = canonical(without_fp8(shards.load(), shards.tensors, declared.block))
        tied = ties(weights, said=config.tie_word_embeddings)
        if tied:
            weights = without_head(weights)
        text = text_arguments(raw) | {"tie_word_embeddings": tied}
        model = qwen3_5.Model(qwen3_5.ModelArgs(model_type="qwen3_5", text_config=text))
        quantise_modules(model, weights, declared.formats)
        expected = parameters(model)
        weights = without_leftovers(weights, expected, config.n_layers)
        check_parameters(weights, expected)
        model.load_weights(list(weights.items()))
    except CheckpointError as error:
        hint = f" ({INDEX} does not list all that its files hold)" if shards.n_unlisted else ""
        raise CheckpointError(f"{path} cannot be loaded: {error}{hint}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be loaded as {config.model_type}: {_one_line(error)}"
        ) from error
    model.eval()
    return model, tied


def _add_head(model: nn.Module, path: Path, mtp_path: Path | None) -> tuple[Path, ...]:
    """Give ``model`` its head, if there is one; returns the files that hold it.

    Raises:
        CheckpointError: there is none at ``mtp_path``, or none for this model.
    """
    try:
        head = find_head(mtp_path or path)
        if head is not None:
            model.language_model.mtp = head.read(path)
            _log.info("drafts are made by the MTP head in %s", head.path)
            return head.shards.files
        if mtp_path is not None:
            raise CheckpointError(f"neither mtp.fc.weight nor fc.weight is in {mtp_path}")
    except CheckpointError as error:
        if mtp_path is not None:
            raise CheckpointError(f"the MTP head cannot be loaded: {error}") from error
        _log.warning("the checkpoint's MTP head is not used: %s", error)
    return ()


def _load_adapter(model: nn.Module, adapter_path: Path) -> None:
    if "peft_type" in read_json(adapter_path / "adapter_config.json"):
        raise CheckpointError(
            f"the adapter in {adapter_path} is one of PEFT; adapters of mlx-lm are read: merge it into the "
            "checkpoint, or train it with mlx_lm.lora"
        )
    try:
        load_adapters(model, str(adapter_path))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError) as error:
        reason = _one_line(error)
        raise CheckpointError(f"the adapter in {adapter_path} cannot be loaded: {reason}") from error
    model.eval()


def _cast(model: nn.Module, name: str | None) -> mx.Dtype:
    """Bring floating weights to one dtype (None: the last norm's) and return it; A_log stays float32.

    A norm is never quantised: what it is stored in is what the model was trained to compute in, where an
    embedding's scales may be bytes.
    """
    if name is not None and name not in _DTYPES:
        raise CheckpointError(f"dtype {name!r} is not one of {', '.join(_DTYPES)}")
    dtype = _DTYPES[name] if name is not None else model.language_model.model.norm.weight.dtype

    def cast(key: str, w: mx.array) -> mx.array:
        if key.endswith(("A_log", "dt_bias", "global_scale")):
            return w.astype(mx.float32)
        return w.astype(dtype) if mx.issubdtype(w.dtype, mx.floating) else w

    model.update(tree_map_with_path(cast, model.parameters()))
    return dtype


def _hash_of_head(modules: Modules, of_model: int, hash_: Callable[[Sequence[Path]], int]) -> int:
    """64 bits over the files of the head, where there is one; those of a model are hashed already."""
    if not modules.mtp_files:
        return 0
    return of_model if modules.mtp_files == modules.files else hash_(modules.mtp_files)


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
