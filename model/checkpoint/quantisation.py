"""How the matrices of a checkpoint are stored in few bits: MLX's formats, and FP8 with a scale a block.

Whatever else ``config.json`` says of quantisation is refused: numbers of a layout that is not understood
load as well as any others, and the model then answers nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import Raw, read_json
from model.checkpoint.shards import StoredTensor
from model.checkpoint.weights import Weights, ignored_kind, renamed
from model.errors import CheckpointError

_FP8 = "F8_E4M3"
_SCALE = "_scale_inv"
_BITS = (2, 3, 4, 5, 6, 8)
# Formats whose scales are bytes: each has one width and one group size.
_BYTE_SCALED = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
_REMEDY = "take a conversion for MLX (mlx_lm.convert) or the unquantised checkpoint"


@dataclass(frozen=True, slots=True)
class Declared:
    """What ``config.json`` says about quantisation.

    Attributes:
        formats: MLX's own entry (``quantization``), None without one.
        block: rows and columns that share a scale in FP8 weights, None where none are declared.
    """

    formats: Mapping[str, Any] | None = None
    block: tuple[int, int] | None = None


def declared_in(raw: Raw, path: Path) -> Declared:
    """What the checkpoint in ``path`` says about the quantisation of its weights.

    Args:
        raw: its ``config.json``.

    Raises:
        CheckpointError: a layout that is not read here.
    """
    text = raw.get("text_config") or {}
    own = raw.get("quantization") or text.get("quantization")
    foreign = raw.get("quantization_config") or text.get("quantization_config")
    if not own and foreign and "quant_method" not in foreign and "bits" in foreign:
        own = foreign  # mlx-lm writes its entry under both names
    if own:
        return Declared(formats={renamed(name): value for name, value in own.items()})
    beside = path / "hf_quant_config.json"
    if not foreign and beside.exists():
        foreign = {"quant_method": "modelopt", **read_json(beside)}
    if not foreign:
        return Declared()
    method = foreign.get("quant_method")
    if method != "fp8":
        raise CheckpointError(
            f"the weights are quantised by {method}; of foreign layouts only FP8 with a scale a block is "
            f"read: {_REMEDY}"
        )
    return Declared(block=_block_of(foreign))


def _block_of(said: Raw) -> tuple[int, int]:
    block = said.get("weight_block_size")
    sizes = isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)
    if (
        not sizes
        or said.get("fmt", "e4m3") != "e4m3"
        or said.get("activation_scheme", "dynamic") != "dynamic"
    ):
        raise CheckpointError(
            f"the weights are FP8 with weight_block_size {block}, fmt {said.get('fmt')} and "
            f"activation_scheme {said.get('activation_scheme')}; only e4m3 with a scale a block and dynamic "
            f"activations is read: {_REMEDY}"
        )
    assert isinstance(block, list)
    return block[0], block[1]


def without_fp8(
    weights: Weights, tensors: Mapping[str, StoredTensor], block: tuple[int, int] | None
) -> Weights:
    """``weights`` with every FP8 matrix multiplied by its scales, in float32, lazily.

    Raises:
        CheckpointError: FP8 without scales, or scales of another shape.
    """
    result = dict(weights)
    for name, tensor in tensors.items():
        if tensor.dtype != _FP8 or ignored_kind(name) is not None:
            continue
        scales = result.pop(name + _SCALE, None)
        if block is None or scales is None:
            lacking = "config.json declares no FP8 blocks" if block is None else f"{name}{_SCALE} is missing"
            raise CheckpointError(f"{name} is stored as FP8, but {lacking}: {_REMEDY}")
        result[name] = _times_scales(name, weights[name], scales, block)
    return result


def _times_scales(name: str, stored: mx.array, scales: mx.array, block: tuple[int, int]) -> mx.array:
    """Bytes [..., out, in] by scales [..., out / rows, in / columns], the last block of each side cut."""
    *lead, n_out, n_in = stored.shape
    wanted = (*lead, -(-n_out // block[0]), -(-n_in // block[1]))
    if scales.shape != wanted or not mx.issubdtype(scales.dtype, mx.floating):
        raise CheckpointError(
            f"{name}{_SCALE} has shape {list(scales.shape)} and type {_short(scales.dtype)}, where floating "
            f"numbers of shape {list(wanted)} belong"
        )
    by_row = mx.repeat(scales.astype(mx.float32), block[0], axis=-2)[..., :n_out, :]
    return mx.from_fp8(stored, mx.float32) * mx.repeat(by_row, block[1], axis=-1)[..., :n_in]


def quantise_modules(model: nn.Module, weights: Weights, formats: Mapping[str, Any] | None) -> None:
    """Exchange the layers of ``model`` whose weights are stored packed for quantised ones.

    The format of each is read off the shapes, which leave no choice; what ``formats`` says of it must agree.

    Raises:
        CheckpointError: a matrix is packed in no format of MLX, or in another than ``config.json`` says.
    """
    found: dict[str, dict[str, Any]] = {}
    for path, module in model.named_modules():
        if not hasattr(module, "to_quantized"):
            continue
        said = (formats or {}).get(path)
        if f"{path}.scales" not in weights:
            if isinstance(said, dict):
                raise CheckpointError(f"config.json says that {path} is quantised, its weights are not")
            continue
        if formats is None:
            raise CheckpointError(f"{path} is stored quantised, of which config.json says nothing")
        found[path] = _format_of(path, module, weights)
        _check_agreement(path, found[path], said)
    nn.quantize(model, class_predicate=lambda path, _: found.get(path, False))


def _format_of(path: str, module: nn.Module, weights: Weights) -> dict[str, Any]:
    packed, scales = weights.get(f"{path}.weight"), weights[f"{path}.scales"]
    n_in = module.weight.shape[-1]
    if packed is None or packed.dtype != mx.uint32 or 0 in (*packed.shape, *scales.shape):
        raise CheckpointError(f"{path} has scales, but no packed weights")
    bits, bits_rest = divmod(packed.shape[-1] * 32, n_in)
    group_size, group_rest = divmod(n_in, scales.shape[-1])
    mode = "affine" if scales.dtype != mx.uint8 else _BYTE_SCALED.get((bits, group_size))
    has_biases = f"{path}.biases" in weights
    if bits_rest or group_rest or bits not in _BITS or mode is None or has_biases != (mode == "affine"):
        raise CheckpointError(
            f"{path} is packed in no format of MLX: weights {list(packed.shape)}, scales "
            f"{list(scales.shape)} of {_short(scales.dtype)}, {'with' if has_biases else 'no'} biases, for "
            f"{n_in} inputs"
        )
    form: dict[str, Any] = {"group_size": group_size, "bits": bits, "mode": mode}
    if f"{path}.global_scale" in weights:
        form["global_scale"] = True
    return form


def _check_agreement(path: str, found: Mapping[str, Any], said: object) -> None:
    if said is None or said is True:
        return  # the entry for all need not fit what it does not name
    stated = said if isinstance(said, dict) else {}
    parts = ("bits", "group_size", "mode")
    if said is False or any(key in stated and stated[key] != found[key] for key in parts):
        stored = f"{found['bits']} bits in groups of {found['group_size']} ({found['mode']})"
        raise CheckpointError(f"config.json says {said} of {path}, which is stored in {stored}")


def _short(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
