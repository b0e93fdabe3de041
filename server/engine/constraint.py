"""What a reply's next token may be, beyond what the model wants: the end of a thought whose budget
is spent, and behind the thought what a grammar allows."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from model.text.grammar import Grammar
from model.text.reply import ReplyReader

THOUGHT_BEFORE_GRAMMAR = 4096
"""Tokens of a thought in front of a grammar, where the request sets no budget: it must not end the reply,
so a model that never closes it would think until the context is full."""


class Constraint:
    """Watches one reply through its reader, which has read every token before the next is judged.

    Args:
        reader: the reply so far.
        max_thought_tokens: the thought is closed after so many; None for no limit.
        closing_ids: what closes it.
        grammar: what the content must be; None for anything.
        end_ids: what ends a reply, which a thought in front of a grammar must not do.
    """

    def __init__(
        self,
        reader: ReplyReader,
        *,
        max_thought_tokens: int | None,
        closing_ids: Sequence[int],
        grammar: Grammar | None = None,
        end_ids: Sequence[int] = (),
    ) -> None:
        self._reader = reader
        self._max_thought_tokens = max_thought_tokens
        self._closing_ids = tuple(closing_ids)
        self._forced: list[int] = []
        self._grammar = grammar
        self._end_ids = tuple(end_ids)
        self._n_accepted = 0

    def mask(self, vocab_size: int) -> mx.array | None:
        """Which tokens may come next, [V] bool; None when all may. Ask once for each token."""
        if not self._forced and self._is_spent():
            self._forced = list(self._closing_ids)
        if self._forced:
            return mx.arange(vocab_size) == self._forced.pop(0)
        return None if self._grammar is None else self._grammar_mask(self._grammar, vocab_size)

    def _is_spent(self) -> bool:
        budget = self._max_thought_tokens
        if budget is None and self._grammar is not None:
            budget = THOUGHT_BEFORE_GRAMMAR
        return budget is not None and self._reader.in_thought and self._reader.n_reasoning_tokens >= budget

    def _grammar_mask(self, grammar: Grammar, vocab_size: int) -> mx.array:
        if self._reader.in_thought:
            allowed = np.ones(vocab_size, dtype=np.bool_)
            allowed[list(self._end_ids)] = False
            return mx.array(allowed)
        for token_id in self._reader.content_ids[self._n_accepted :]:
            grammar.accept(token_id)
        self._n_accepted = len(self._reader.content_ids)
        return grammar.mask()
