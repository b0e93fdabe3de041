"""Where text can be cut so that the ids of its pieces, joined, are the ids of the whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

BORDERS = tuple(
    map(re.compile, (r"(?<=\n\n)(?=[A-Za-z])", r"(?<=\n)(?=[A-Za-z])", r"(?<=[A-Za-z])(?= [A-Za-z])"))
)
"""Where text may be cut: between a blank line and a letter, a line feed and a letter, a word and the
space before the next. No pattern below has a match that reaches over such a place or looks beyond it,
and no normal form joins the two sides."""
MAX_PIECE_CHARS = 16_384
FAMILY_PATTERNS = frozenset(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|\p{{N}}| ?[^\s{others}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    for letters, others in ((r"\p{L}", r"\p{L}\p{N}"), (r"[\p{L}\p{M}]", r"\p{L}\p{M}\p{N}"))
)
"""How Qwen2 to 3 and Qwen3.5 cut text before BPE."""


def has_known_borders(definition: dict[str, Any]) -> bool:
    """Whether :data:`BORDERS` hold for a ``tokenizer.json``: its normaliser is NFC or none, and it cuts
    text by one of the family's patterns and nothing else."""
    normalizer, steps = definition.get("normalizer") or {}, definition.get("pre_tokenizer") or {}
    split, *rest = steps.get("pretokenizers") or [{}]
    if normalizer.get("type", "NFC") != "NFC" or split.get("type") != "Split" or len(rest) != 1:
        return False
    is_plain = rest[0].get("type") == "ByteLevel" and not rest[0].get("use_regex", True)
    pattern = (split.get("pattern") or {}).get("Regex")
    is_plain = is_plain and split.get("behavior") == "Isolated" and not split.get("invert")
    return is_plain and pattern in FAMILY_PATTERNS


def cut(text: str, level: int = 0) -> list[str]:
    """Pieces at the borders of ``level``; those that are too long, at the borders of the next."""
    pieces: list[str] = []
    for piece in BORDERS[level].split(text):
        if len(piece) > MAX_PIECE_CHARS and level + 1 < len(BORDERS):
            pieces += _grouped(cut(piece, level + 1))
        else:
            pieces.append(piece)
    return pieces


def _grouped(pieces: Sequence[str]) -> list[str]:
    """Neighbours joined up to a handy size."""
    groups: list[list[str]] = []
    n_chars = MAX_PIECE_CHARS
    for piece in pieces:
        if n_chars + len(piece) > MAX_PIECE_CHARS:
            groups.append([])
            n_chars = 0
        groups[-1].append(piece)
        n_chars += len(piece)
    return ["".join(group) for group in groups]
