"""What a reply's next token may be, beyond what the model wants: the end of a thought whose budget
is spent."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from model.reply import ReplyReader


class Constraint:
    """Watches one reply through its reader, which has read every token before the next is judged.

    Args:
        reader: the reply so far.
        max_thought_tokens: the thought is closed after so many.
        closing_ids: what closes it.
    """

    def __init__(self, reader: ReplyReader, *, max_thought_tokens: int, closing_ids: Sequence[int]) -> None:
        self._reader = reader
        self._max_thought_tokens = max_thought_tokens
        self._closing_ids = tuple(closing_ids)
        self._forced: list[int] = []

    def mask(self, vocab_size: int) -> mx.array | None:
        """Which tokens may come next, [V] bool; None when all may."""
        if not self._forced and self._is_spent():
            self._forced = list(self._closing_ids)
        if not self._forced:
            return None
        return mx.arange(vocab_size) == self._forced.pop(0)

    def _is_spent(self) -> bool:
        return self._reader.in_thought and self._reader.n_reasoning_tokens >= self._max_thought_tokens
