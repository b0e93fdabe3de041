"""The weights of a multi-token prediction head: inside a checkpoint, or in a directory of its own.

Which form its norms have is told by where it lies, never by the numbers: the two norms in front of ``fc``
look alike in both. Hugging Face stores w - 1 under ``mtp.*``; a converted head stores w, under bare names in
its own directory, or beside the converted layers of an MLX checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_5

from model.checkpoint.config import read_json, text_arguments
from model.checkpoint.quantisation import declared_in, quantise_modules, without_fp8
from model.checkpoint.shards import Shards, StoredTensor, read_shards
from model.checkpoint.weights import (
    CONVOLUTION,
    check_parameters,
    is_hugging_face,
    parameters,
    stack_experts,
    without_leftovers,
)
from model.errors import CheckpointError

_PREFIX = re.compile(r"(?:model\.)?(?:language_model\.)?(?:model\.)?mtp\.")


class MtpModules(nn.Module):  # type: ignore[misc]  # mlx has no types
    """The head's modules, named as Hugging Face names its weights behind ``mtp.``.

    Args:
        args: of the model; the head's layer is one of its full-attention layers.
    """

    def __init__(self, args: qwen3_5.TextModelArgs) -> None:
        super().__init__()
        size, eps = args.hidden_size, args.rms_norm_eps
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=eps)
        self.layers = [qwen3_5.DecoderLayer(args, args.full_attention_interval - 1)]
        self.norm = nn.RMSNorm(size, eps=eps)


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A head's weights, not read yet.

    Attributes:
        path: the directory that they lie in.
        shards: of those, the head's own tensors under their bare names.
        is_shifted: norms are stored as w - 1.
    """

    path: Path
    shards: Shards
    is_shifted: bool

    def read(self, model_path: Path) -> MtpModules:
        """The modules for the model in directory ``model_path``, not evaluated.

        Raises:
            CheckpointError: the weights are incomplete, or not of such a model.
        """
        raw, model = read_json(self.path / "config.json"), read_json(model_path / "config.json")
        for said in (raw, model):
            text = said.get("text_config") or said
            n_layers = text.get("mtp_num_hidden_layers") or text.get("num_mtp_layers") or 1
            if n_layers != 1 or text.get("mtp_use_dedicated_embeddings"):
                raise CheckpointError(
                    f"{self.path}: an MTP head of {n_layers} layers"
                    + (" with embeddings of its own" if n_layers == 1 else "")
                    + " is not supported"
                )
        declared = declared_in(raw, self.path)
        weights = {_bare(name): w for name, w in self.shards.load().items() if _bare(name) in self._tensors}
        weights = stack_experts(without_fp8(weights, self._tensors, declared.block))
        if self.is_shifted:
            weights = {name: _unshifted(name, w) for name, w in weights.items()}
        whole = qwen3_5.ModelArgs(model_type="qwen3_5", text_config=text_arguments(model))
        modules = MtpModules(qwen3_5.TextModelArgs.from_dict(whole.text_config))  # type: ignore[no-untyped-call]
        formats = declared.formats and {_bare(name): said for name, said in declared.formats.items()}
        quantise_modules(modules, weights, formats)
        expected = parameters(modules)
        weights = without_leftovers(weights, expected, n_layers=1)
        check_parameters(weights, expected)
        modules.load_weights(list(weights.items()))
        modules.eval()
        return modules

    @property
    def _tensors(self) -> Mapping[str, StoredTensor]:
        return {_bare(name): tensor for name, tensor in self.shards.tensors.items()}


def find_head(path: Path) -> StoredHead | None:
    """The head in directory ``path``, a whole checkpoint or a head's alone; None where there is none.

    Raises:
        CheckpointError: the directory holds no weights, or not all that it should.
    """
    shards = read_shards(path)
    inside = {name: tensor for name, tensor in shards.tensors.items() if _PREFIX.match(name)}
    if inside:
        is_converted = all("language_model." in name for name in inside)
        has_model = any(name.endswith(CONVOLUTION) for name in shards.tensors)
        is_shifted = not is_converted and (not has_model or is_hugging_face(shards.tensors))
        return StoredHead(path, replace(shards, tensors=inside), is_shifted)
    if "fc.weight" in shards.tensors:
        return StoredHead(path, shards, is_shifted=False)
    return None


def _bare(name: str) -> str:
    return _PREFIX.sub("", name, count=1)


def _unshifted(name: str, w: mx.array) -> mx.array:
    # In float32: bfloat16 has too few digits near 1 for the small differences that are stored.
    is_norm = w.ndim == 1 and "norm" in name
    return (w.astype(mx.float32) + 1.0).astype(w.dtype) if is_norm else w
