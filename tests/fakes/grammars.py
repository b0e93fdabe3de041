"""Grammars over the demo model's tokens, and what they let through."""

from __future__ import annotations

from functools import cache

import numpy as np

from model.text.grammar.masks import GrammarTable
from tests.fakes.chatml import tokenizer_with
from tests.fakes.scripted import ids_of

VOCAB = 4200
"""More rows than tokens, as in padded vocabularies."""


@cache
def table() -> GrammarTable:
    return GrammarTable(tokenizer_with(), VOCAB)


def controls() -> tuple[str, ...]:
    return tuple(tokenizer_with().controls)


def takes(grammar: str, text: str) -> bool:
    """Whether ``text`` may be written from beginning to end under the grammar's masks."""
    reading = table().start(grammar)
    for token_id in ids_of(text):
        if not np.array(reading.mask())[token_id]:
            return False
        assert reading.accept(token_id)
    return reading.is_accepting
