"""Rendered text to ids, a message at a time, remembering what was encoded before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.conversation import OPENER
from model.guard import Guard
from model.memo import IdsMemo
from model.tokenizer import TextTokenizer

Ids = NDArray[np.uint32]


class BlockEncoder:
    """Encodes guarded text in blocks: what stands before the first message, then one for each message,
    beginning with its opening control token. Blocks are what conversations share from turn to turn.

    Args:
        tokenizer: encodes what is new.
        budget_bytes: for remembered blocks.
    """

    def __init__(self, tokenizer: TextTokenizer, budget_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._memo = IdsMemo(budget_bytes)

    def encode(self, texts: Sequence[str], guard: Guard) -> list[Ids]:
        """Ids of each block of :func:`blocks_of`."""
        return [self._block(text, guard) for text in texts]

    def _block(self, text: str, guard: Guard) -> Ids:
        known = self._memo.get(text)
        if known is None:
            segments = self._tokenizer.split(text)
            known = joined(self._tokenizer.encode_segments(segments, guard.stand_ins, guard.guarded))
            known.flags.writeable = False
            self._memo.put(text, known)
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
