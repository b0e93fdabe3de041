"""Turns the weights of either checkpoint layout into the names and forms mlx-lm's modules expect.

Hugging Face layout: ``model.*`` or ``model.language_model.*``, convolutions [C, 1, K], RMSNorm weights
stored as w - 1 (the gated norm apart). MLX layout: ``language_model.model.*``, convolutions [C, K, 1],
norms as they are used. Which one it is, is decided once for the whole checkpoint.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from model.errors import CheckpointError

Weights = dict[str, mx.array]


class Shaped(Protocol):
    """An array, or what a file's header says of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...


_log = logging.getLogger("crossturn.model")

_PREFIXES = (
    ("model.language_model.", "language_model.model."),
    ("language_model.", "language_model."),
    ("model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
)
# Parts of a name that mark towers and heads a text server has no use for.
_IGNORED_PARTS = {"visual": "vision", "vision_tower": "vision", "vision_model": "vision", "mtp": "MTP"}
_SHIFTED_NORMS = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
    "language_model.model.norm.weight",
)
_HEAD = "language_model.lm_head."
_EMBEDDING = "language_model.model.embed_tokens."
CONVOLUTION = ".conv1d.weight"
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_OF_EXPERTS = re.compile(r"\.mlp\.experts\.")
_EXPERT = re.compile(r"(.*\.mlp\.)experts\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_FUSED = re.compile(r"(.*\.mlp\.)experts\.(gate_up_proj|down_proj)(?:\.weight)?")


def canonical(weights: Weights) -> Weights:
    """``weights`` under mlx-lm's names, norms shifted exactly once; vision and MTP weights left out.

    Args:
        weights: a whole checkpoint, all shards together.

    Raises:
        CheckpointError: the layout cannot be told, or experts are missing.
    """
    kept = _language_weights(weights)
    if is_hugging_face(kept):
        kept = {name: _from_hugging_face(name, w) for name, w in kept.items()}
    return stack_experts(kept)


def ties(weights: Weights, *, said: bool) -> bool:
    """Whether the output matrix is the embedding, for which the stored weights count more than a flag.

    A head that is stored and differs from the embedding is what the model was trained with, whatever
    ``config.json`` says; transformers decides the same.

    Args:
        weights: under mlx-lm's names.
        said: ``tie_word_embeddings``.
    """
    head = _parts_of(_HEAD, weights)
    if not said or not head:
        return said
    embedding = _parts_of(_EMBEDDING, weights)
    same = head.keys() == embedding.keys() and all(
        w.shape == embedding[part].shape and bool(mx.array_equal(w, embedding[part]))
        for part, w in head.items()
    )
    if not same:
        _log.warning(
            "config.json ties the output matrix to the embedding, but a different lm_head is stored, "
            "which is used"
        )
    return same


def without_head(weights: Weights) -> Weights:
    """``weights`` less a stored copy of the embedding."""
    return {name: w for name, w in weights.items() if not name.startswith(_HEAD)}


def parameters(module: nn.Module) -> Weights:
    """The parameters of ``module`` by their dotted names."""
    return dict(tree_flatten(module.parameters()))


def without_leftovers(weights: Weights, expected: Collection[str], n_layers: int) -> Weights:
    """``weights`` less the names that no module takes, which are reported once, all together.

    Args:
        expected: names of the model's parameters.
        n_layers: layers that ``config.json`` gives the model.

    Raises:
        CheckpointError: one of them belongs to a matrix that is used, or to a layer that config.json does
            not count: without it the model would compute something else than what was stored.
    """
    leftovers = sorted(weights.keys() - expected)
    stems = {name.removesuffix(".weight") for name in expected if name.endswith(".weight")}
    for name in leftovers:
        if _belongs_to(name, stems):
            raise CheckpointError(
                f"{name} is stored beside a matrix that is used, and what it does to it is not known: the "
                "weights are quantised or laid out in a way that cannot be read"
            )
        if (match := _LAYER.search(name)) and int(match[1]) >= n_layers:
            raise CheckpointError(f"config.json says num_hidden_layers {n_layers}, but {name} is stored")
    if leftovers:
        shown = ", ".join(leftovers[:8]) + (", ..." if len(leftovers) > 8 else "")
        _log.warning("%d weights of the checkpoint are not used: %s", len(leftovers), shown)
    return {name: w for name, w in weights.items() if name in expected}


def check_parameters(weights: Weights, expected: Weights) -> None:
    """Every parameter is there, has its shape, and holds numbers that can be computed with.

    Args:
        expected: the model's parameters, those of quantised layers in their packed form.

    Raises:
        CheckpointError: the first that is not, by its name.
    """
    if missing := sorted(expected.keys() - weights.keys()):
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} others" if len(missing) > 4 else "")
        raise CheckpointError(f"the weights lack {shown}")
    for name, wanted in expected.items():
        w = weights[name]
        if w.shape != wanted.shape:
            raise CheckpointError(
                f"{name} has shape {list(w.shape)}, where config.json asks for {list(wanted.shape)}"
            )
        packed = f"{name.rpartition('.')[0]}.scales" in expected
        if not packed and not mx.issubdtype(w.dtype, mx.floating):
            stored = str(w.dtype).removeprefix("mlx.core.")
            raise CheckpointError(
                f"{name} is stored as {stored}: an unquantised matrix holds floating numbers"
            )


def ignored_kind(name: str) -> str | None:
    """What a stored tensor is part of, if that is a tower or a head that a text server has no use for."""
    return next((_IGNORED_PARTS[part] for part in name.split(".") if part in _IGNORED_PARTS), None)


def renamed(name: str) -> str:
    """A stored name under mlx-lm's prefixes."""
    for old, new in _PREFIXES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _parts_of(stem: str, weights: Weights) -> Weights:
    """The pieces of one matrix (``weight``, and ``scales`` and ``biases`` where it is packed)."""
    return {name.removeprefix(stem): w for name, w in weights.items() if name.startswith(stem)}


def _belongs_to(name: str, stems: Collection[str]) -> bool:
    """Whether a tensor stands beside a matrix of the model, as ``q_proj.weight_scale`` does."""
    parts = name.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts)))
    return any(stem in stems for stem in above) or _OF_EXPERTS.search(name) is not None


def _language_weights(weights: Weights) -> Weights:
    kept: Weights = {}
    ignored: Counter[str] = Counter()
    for name, w in weights.items():
        kind = ignored_kind(name)
        if kind is None:
            kept[renamed(name)] = w
        else:
            ignored[kind] += 1
    del ignored["MTP"]  # it is read by itself (``model/checkpoint/mtp.py``)
    if ignored:
        parts = " and ".join(f"{n} {kind} weights" for kind, n in sorted(ignored.items()))
        _log.info("the checkpoint's %s are ignored: this server reads and writes text", parts)
    return kept


def is_hugging_face(weights: Mapping[str, Shaped]) -> bool:
    """Which layout the weights of a model have: [C, 1, K] against [C, K, 1].

    Raises:
        CheckpointError: neither alone. A mixture would shift some norms twice or never.
    """
    shapes = [w.shape for name, w in weights.items() if name.endswith(CONVOLUTION)]
    layouts = {shape[1] == 1 and shape[2] != 1 for shape in shapes}
    if len(layouts) != 1:
        raise CheckpointError(
            "the weights hold no GDN convolution" if not layouts else "the weights mix two checkpoint layouts"
        )
    return layouts.pop()


def _from_hugging_face(name: str, w: mx.array) -> mx.array:
    if name.endswith(CONVOLUTION):
        return w.moveaxis(2, 1)
    if name.endswith(_SHIFTED_NORMS):
        # In float32: bfloat16 has too few digits near 1 for the small differences that are stored.
        return (w.astype(mx.float32) + 1.0).astype(w.dtype)
    return w


def stack_experts(weights: Weights) -> Weights:
    """Experts as ``switch_mlp.{gate,up,down}_proj`` [E, out, in], from one tensor each or a fused pair."""
    result: Weights = {}
    single: dict[str, dict[int, mx.array]] = {}
    for name, w in weights.items():
        if match := _EXPERT.fullmatch(name):
            target = f"{match[1]}switch_mlp.{match[3]}.weight"
            single.setdefault(target, {})[int(match[2])] = w
        elif match := _FUSED.fullmatch(name):
            result.update(_split_fused(match[1] + "switch_mlp.", match[2], w))
        else:
            result[name] = w
    for target, experts in single.items():
        if sorted(experts) != list(range(len(experts))):
            raise CheckpointError(f"experts are missing for {target}")
        result[target] = mx.stack([experts[i] for i in range(len(experts))])
    return result


def _split_fused(prefix: str, kind: str, w: mx.array) -> Iterable[tuple[str, mx.array]]:
    if kind == "down_proj":
        return [(f"{prefix}down_proj.weight", w)]
    gate, up = mx.split(w, 2, axis=-2)
    return [(f"{prefix}gate_proj.weight", gate), (f"{prefix}up_proj.weight", up)]
