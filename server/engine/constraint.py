"""What a reply's next token may be, beyond what the model wants: the end of a thought whose budget
is spent, and behind the thought what a grammar allows.

In front of a grammar a thought cannot end the reply. A model that wants to end there has thought enough:
its end token is swapped for what closes the thought, and the grammar begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from model.text.grammar.masks import Grammar
from model.text.reply import ReplyReader


class Constraint:
    """Watches one reply through its reader, which has read every token before the next is judged.

    Args:
        reader: the reply so far.
        max_thought_tokens: the thought is closed after so many; None for no limit.
        closing_ids: what closes it.
        grammar: what the content must be; None for anything.
        end_ids: what ends a reply, and in front of a grammar the thought alone.
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
        self._end_ids = mx.array(list(end_ids), dtype=mx.uint32)
        self._was_swapped: mx.array | None = None  # lazy bool, of the token sampled last
        self._n_accepted = 0

    def mask(self, vocab_size: int) -> mx.array | None:
        """Which tokens may come next, [V] bool; None when all may. Ask once for each token."""
        if self._was_swapped is not None and self._was_swapped.item():
            self._forced = list(self._closing_ids[1:])
        elif not self._forced and self._is_spent():
            self._forced = list(self._closing_ids)
        self._was_swapped = None
        if self._forced:
            return mx.arange(vocab_size) == self._forced.pop(0)
        if self._grammar is None or self._reader.in_thought:
            return None
        for token_id in self._reader.content_ids[self._n_accepted :]:
            self._grammar.accept(token_id)
        self._n_accepted = len(self._reader.content_ids)
        return self._grammar.mask()

    def swap(self, token: mx.array) -> mx.array:
        """What is written in place of ``token``, the one sampled under the last mask (lazy scalar)."""
        if self._grammar is None or not self._reader.in_thought:
            return token
        self._was_swapped = mx.any(token == self._end_ids)
        return mx.where(self._was_swapped, self._closing_ids[0], token).astype(token.dtype)

    def _is_spent(self) -> bool:
        budget = self._max_thought_tokens
        return budget is not None and self._reader.in_thought and self._reader.n_reasoning_tokens >= budget
