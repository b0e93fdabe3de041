"""Rendered text to ids, a message at a time, remembering what was encoded before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from model.conversation import OPENER
from model.guard import Guard
from model.memo import IdsMemo
from model.tokenizer import TextTokenizer

Ids = NDArray[np.uint32]
MIN_CHARS_CUT = 2048
"""Shorter texts are encoded at once: half a millisecond."""


class BlockEncoder:
    """Encodes guarded text in blocks: what stands before the first message, then one for each message,
    beginning with its opening control token. Blocks are what conversations share from turn to turn.
    Of a new block, such as a system prompt with the time at its end, known paragraphs are not encoded
    again either.

    Args:
        tokenizer: encodes what is new.
        budget_bytes: for what is remembered.
    """

    def __init__(self, tokenizer: TextTokenizer, budget_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._blocks = IdsMemo(budget_bytes // 2)
        self._paragraphs = IdsMemo(budget_bytes // 2)

    def encode(self, texts: Sequence[str], guard: Guard) -> list[Ids]:
        """Ids of each block of :func:`blocks_of`."""
        if guard.attempt:
            # The same guarded text stands for other typed text under another guard.
            return [self._new_block(text, guard) for text in texts]
        return [_recalled(self._blocks, text, self._new_block, guard) for text in texts]

    def _new_block(self, text: str, guard: Guard) -> Ids:
        segments = self._tokenizer.split(text)
        return joined(
            [
                self._tokenizer.control_ids(segment) if index % 2 else self._plain(segment, guard)
                for index, segment in enumerate(segments)
            ]
        )

    def _plain(self, segment: str, guard: Guard) -> Ids:
        if guard.attempt or len(segment) < MIN_CHARS_CUT:
            return self._new_text(segment, guard)
        paragraphs = self._tokenizer.pieces(segment)
        return joined([_recalled(self._paragraphs, text, self._new_text, guard) for text in paragraphs])

    def _new_text(self, text: str, guard: Guard) -> Ids:
        return self._tokenizer.encode_text(guard.restore(text))


def _recalled(memo: IdsMemo, text: str, make: Callable[[str, Guard], Ids], guard: Guard) -> Ids:
    known = memo.get(text)
    if known is None:
        known = make(text, guard)
        known.flags.writeable = False
        memo.put(text, known)
    return known


def blocks_of(text: str) -> list[str]:
    """Rendered text cut before every opening of a message. Joined they are the text."""
    before, *messages = text.split(OPENER)
    return [before, *(OPENER + message for message in messages)]


def joined(parts: Sequence[Ids]) -> Ids:
    """One array of all ``parts``, in order."""
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)


def n_common(one: Ids, other: Ids) -> int:
    """How many ids the two begin with in common."""
    n = min(len(one), len(other))
    differs = np.flatnonzero(one[:n] != other[:n])
    return int(differs[0]) if len(differs) else n
