"""Turns the weights of either checkpoint layout into the names and forms mlx-lm's modules expect.

Hugging Face layout: ``model.*`` or ``model.language_model.*``, convolutions [C, 1, K], RMSNorm weights
stored as w - 1 (the gated norm apart). MLX layout: ``language_model.model.*``, convolutions [C, K, 1],
norms as they are used. Which one it is, is decided once for the whole checkpoint.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from model.errors import CheckpointError

Weights = dict[str, mx.array]

_log = logging.getLogger(__name__)

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
_CONV = ".conv1d.weight"
_EXPERT = re.compile(r"(.*\.mlp\.)experts\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_FUSED = re.compile(r"(.*\.mlp\.)experts\.(gate_up_proj|down_proj)(?:\.weight)?")


def canonical(weights: Weights, *, tied: bool) -> Weights:
    """``weights`` under mlx-lm's names, norms shifted exactly once; vision and MTP weights left out.

    Args:
        weights: a whole checkpoint, all shards together.
        tied: the output matrix is the embedding, so a stored ``lm_head`` is dropped.

    Raises:
        CheckpointError: the layout cannot be told, or experts are missing.
    """
    kept = _language_weights(weights)
    if tied:
        kept = {name: w for name, w in kept.items() if not name.startswith("language_model.lm_head.")}
    if _is_hugging_face(kept):
        kept = {name: _from_hugging_face(name, w) for name, w in kept.items()}
    return _stack_experts(kept)


def parameters(module: nn.Module) -> Weights:
    """The parameters of ``module`` by their dotted names."""
    return dict(tree_flatten(module.parameters()))


def without_leftovers(weights: Weights, expected: Collection[str]) -> Weights:
    """``weights`` less the names no module takes, which are reported once, all together.

    Args:
        expected: parameter names of the unquantised model; the parts of a quantised matrix
            (``scales``, ``biases``, ``global_scale``) are known by the ``weight`` beside them.
    """
    leftovers = sorted(
        name for name in weights if name not in expected and not _is_quantised_part(name, expected)
    )
    if leftovers:
        shown = ", ".join(leftovers[:8]) + (", ..." if len(leftovers) > 8 else "")
        _log.warning("%d weights of the checkpoint are not used: %s", len(leftovers), shown)
    unused = set(leftovers)
    return {name: w for name, w in weights.items() if name not in unused}


def _language_weights(weights: Weights) -> Weights:
    kept: Weights = {}
    ignored: Counter[str] = Counter()
    for name, w in weights.items():
        kind = next((_IGNORED_PARTS[part] for part in name.split(".") if part in _IGNORED_PARTS), None)
        if kind is None:
            kept[_renamed(name)] = w
        else:
            ignored[kind] += 1
    if ignored:
        parts = " and ".join(f"{n} {kind} weights" for kind, n in sorted(ignored.items()))
        _log.info("the checkpoint's %s are ignored: this server reads and writes text", parts)
    return kept


def _renamed(name: str) -> str:
    for old, new in _PREFIXES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _is_hugging_face(weights: Weights) -> bool:
    """[C, 1, K] against [C, K, 1]; a mixture would shift some norms twice or never."""
    layouts = {w.shape[1] == 1 and w.shape[2] != 1 for name, w in weights.items() if name.endswith(_CONV)}
    if len(layouts) != 1:
        raise CheckpointError(
            "the weights hold no GDN convolution" if not layouts else "the weights mix two checkpoint layouts"
        )
    return layouts.pop()


def _from_hugging_face(name: str, w: mx.array) -> mx.array:
    if name.endswith(_CONV):
        return w.moveaxis(2, 1)
    if name.endswith(_SHIFTED_NORMS):
        # In float32: bfloat16 has too few digits near 1 for the small differences that are stored.
        return (w.astype(mx.float32) + 1.0).astype(w.dtype)
    return w


def _stack_experts(weights: Weights) -> Weights:
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


def _is_quantised_part(name: str, expected: Collection[str]) -> bool:
    stem, _, part = name.rpartition(".")
    return part in {"scales", "biases", "global_scale"} and f"{stem}.weight" in expected
