"""What a checkpoint will take in memory, told by its configuration and by the headers of its files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from model.checkpoint.config import ModelConfig, read_config, read_json
from model.checkpoint.quantisation import declared_in
from model.checkpoint.shards import Shards, read_shards
from model.checkpoint.weights import ignored_kind

_FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_N_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_UNPACKED = "F8_E4M3"
_ALWAYS_FLOAT32 = ("A_log", "dt_bias")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes in memory.

    Attributes:
        weights: of the whole model.
        state: of a conversation, however long.
        token: of each of its tokens besides.
        max_context: tokens it may have.
        has_mtp: a multi-token prediction head is counted.
    """

    weights: int
    state: int
    token: int
    max_context: int
    has_mtp: bool = False

    def context_within(self, n_bytes: int) -> int:
        """Tokens of the longest conversation that ``n_bytes`` hold, 0 for none."""
        return max(0, min(self.max_context, (n_bytes - self.state) // self.token))


def footprint(path: Path, *, dtype: str | None = None, has_mtp: bool = False) -> Footprint:
    """That of the checkpoint in directory ``path``.

    Args:
        dtype: what it will compute in; None for its own.
        has_mtp: whether its multi-token prediction head is wanted, if it has one.

    Raises:
        CheckpointError: it is none that can be loaded, as far as can be told without its weights.
    """
    config = read_config(path)
    declared_in(read_json(path / "config.json"), path)
    shards = read_shards(path)
    size = _N_BYTES[dtype or _own_dtype(shards)]
    has_mtp &= any(ignored_kind(name) == "MTP" and name.endswith(".fc.weight") for name in shards.tensors)
    state, token = _state_bytes(config, size, has_mtp=has_mtp)
    return Footprint(_weight_bytes(shards, size, has_mtp=has_mtp), state, token, config.max_context, has_mtp)


def _own_dtype(shards: Shards) -> str:
    norms = (tensor for name, tensor in shards.tensors.items() if name.endswith("model.norm.weight"))
    return next((_FLOATS[norm.dtype] for norm in norms if norm.dtype in _FLOATS), "bfloat16")


def _weight_bytes(shards: Shards, size: int, *, has_mtp: bool) -> int:
    total = 0
    for name, tensor in shards.tensors.items():
        if ignored_kind(name) not in ((None, "MTP") if has_mtp else (None,)) or name.endswith("_scale_inv"):
            continue
        if tensor.dtype in _FLOATS or tensor.dtype == _UNPACKED:
            total += math.prod(tensor.shape) * (4 if name.endswith(_ALWAYS_FLOAT32) else size)
        else:
            total += tensor.n_bytes
    return total


def _state_bytes(config: ModelConfig, size: int, *, has_mtp: bool) -> tuple[int, int]:
    window = (config.conv_kernel - 1) * config.conv_dim * size
    matrix = config.n_value_heads * config.value_head_dim * config.key_head_dim * 4
    n_full = config.n_full_attention_layers
    n_rows = n_full + has_mtp
    return (config.n_layers - n_full) * (window + matrix), n_rows * 2 * config.kv_dim * size
