"""How positions turn keys and queries, and how many of them a checkpoint was made for."""

from __future__ import annotations

import math
from typing import Any

from model.errors import CheckpointError

Raw = dict[str, Any]

# What transformers takes when config.json leaves them out.
_THETA = 10_000.0
_PARTIAL_ROTARY = 0.25
_PLAIN = ("default", "mrope")
# Those whose angles depend on nothing but the position. With the others (dynamic, longrope) those of old keys
# would change as the conversation grows, and a state that is kept would be wrong.
_TYPES = (*_PLAIN, "linear", "yarn", "llama3")
_NAMES = {"type", "rope_type"}
_YARN_MSCALE = 0.1


def rope_of(text: Raw, beside: Raw | None = None) -> Raw:
    """The rotary parameters as mlx-lm's modules take them.

    Args:
        text: the language model's fields of ``config.json``.
        beside: the fields of the whole, where the language model's are a part of it.

    Raises:
        CheckpointError: two entries contradict each other, or a kind of scaling that is not supported.
    """
    current = _entry(text, "rope_parameters")
    older = _entry(text, "rope_scaling") or _entry(beside or {}, "rope_scaling")
    differing = [key for key in sorted(current.keys() & older.keys() - _NAMES) if current[key] != older[key]]
    kinds = {_kind(current), _kind(older)} - {*_PLAIN}
    if differing or len(kinds) > 1:
        told = ", ".join(differing or sorted(kinds))
        raise CheckpointError(f"rope_parameters and rope_scaling contradict each other ({told})")
    rope = current | older
    rope["type"] = rope["rope_type"] = kinds.pop() if kinds else "default"
    rope.setdefault("rope_theta", text.get("rope_theta", _THETA))
    rope.setdefault("partial_rotary_factor", text.get("partial_rotary_factor", _PARTIAL_ROTARY))
    return _checked(rope, text)


def context_limit(text: Raw, rope: Raw) -> int:
    """Tokens that a conversation may have: what the model was made for, or is stretched to by its scaling."""
    limit = int(text["max_position_embeddings"])
    if rope["type"] in _PLAIN:
        return limit
    return round(float(rope["factor"]) * int(rope["original_max_position_embeddings"]))


def _entry(fields: Raw, name: str) -> Raw:
    value = fields.get(name) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is not an object")
    return dict(value)


def _kind(rope: Raw) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _checked(rope: Raw, text: Raw) -> Raw:
    kind = rope["type"]
    if kind not in _TYPES:
        raise CheckpointError(f"rope type {kind!r} is not one of {', '.join(_TYPES)}")
    if kind in _PLAIN:
        return rope
    factor = rope.get("factor")
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 1 <= factor < math.inf:
        raise CheckpointError(f"rope type {kind!r} needs a factor of at least 1, not {factor!r}")
    original = rope.setdefault(
        "original_max_position_embeddings", text.get("original_max_position_embeddings")
    )
    if original is None:
        rope["original_max_position_embeddings"] = text["max_position_embeddings"]
    if kind == "yarn":
        _set_yarn_attention(rope, factor)
    return rope


def _set_yarn_attention(rope: Raw, factor: float) -> None:
    """Put ``attention_factor`` into the words that mlx-lm knows."""
    if rope.get("truncate") is False:
        raise CheckpointError("yarn without truncation (truncate: false) is not supported")
    attention = rope.pop("attention_factor", None)
    if attention is not None and factor > 1:
        rope["mscale"] = (float(attention) - 1) / (_YARN_MSCALE * math.log(factor))
        rope.pop("mscale_all_dim", None)
