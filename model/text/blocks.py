"""Rendered text to ids, a message at a time, remembering what was encoded before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from model.errors import PromptTooLongError
from model.text.conversation import OPENER, Guard
from model.text.tokenizer import TextTokenizer

Ids = NDArray[np.uint32]
Blocks = list[tuple[str, Ids]]
"""The text and ids of each block of a render."""
PATIENCE = 4
"""How many times the context a prompt is read to tell its length; beyond that it is only said to be long."""
MIN_CHARS_CUT = 2048
"""Shorter texts are encoded at once: half a millisecond."""
N_BYTES_PER_ENTRY = 200
"""Roughly what a dictionary entry and an array's header cost on top of text and ids."""


class IdsMemo:
    """Token ids of text segments. A pure cache: dropping an entry costs time and changes no result.

    Args:
        budget_bytes: what texts and ids may hold together; the least recently used go first, and what is
            larger than all of it is not kept.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._kept: LRUCache[str, tuple[str, Ids]] = LRUCache(budget_bytes, _n_bytes)

    def __contains__(self, text: str) -> bool:
        return text in self._kept

    @property
    def n_bytes(self) -> float:
        """Bytes held."""
        return self._kept.currsize

    def recall(self, text: str, make: Callable[[str], Ids]) -> Ids:
        """The ids kept for ``text``, or those that ``make`` gives; they must not change any more."""
        known = self._kept.get(text)
        if known is not None:
            return known[1]
        ids = make(text)
        ids.flags.writeable = False
        if _n_bytes((text, ids)) <= self._kept.maxsize:
            self._kept[text] = text, ids
        return ids


def _n_bytes(kept: tuple[str, Ids]) -> int:
    text, ids = kept
    return sys.getsizeof(text) + ids.nbytes + N_BYTES_PER_ENTRY


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

    def encode(self, text: str, guard: Guard, max_tokens: int | None = None) -> Blocks:
        """The blocks of rendered ``text``, which ``guard`` still guards.

        Raises:
            PromptTooLongError: they have more than ``max_tokens`` tokens; of far more not all are made.
        """
        if max_tokens is not None and len(text) > max_tokens:
            n_tokens = self._tokenizer.min_tokens(text)
            if n_tokens > max_tokens:
                raise PromptTooLongError(n_tokens, max_tokens, is_exact=False)
        # The same guarded text stands for other typed text under another guard.
        recall = _encoded_anew if guard.attempt else self._blocks.recall
        blocks: Blocks = []
        n_tokens = 0
        for block in _cut(text):
            ids = recall(block, partial(self._block, guard=guard, max_tokens=max_tokens))
            blocks.append((block, ids))
            n_tokens += len(ids)
            _check(n_tokens, max_tokens)
        if max_tokens is not None and n_tokens > max_tokens:
            raise PromptTooLongError(n_tokens, max_tokens)
        return blocks

    def _block(self, text: str, guard: Guard, max_tokens: int | None) -> Ids:
        segments = self._tokenizer.split(text)
        return joined(
            [
                self._tokenizer.control_ids(segment) if index % 2 else self._plain(segment, guard, max_tokens)
                for index, segment in enumerate(segments)
            ]
        )

    def _plain(self, segment: str, guard: Guard, max_tokens: int | None) -> Ids:
        def encode(text: str) -> Ids:
            return self._tokenizer.encode_text(guard.restore(text))

        if len(segment) < MIN_CHARS_CUT:
            return encode(segment)
        recall = _encoded_anew if guard.attempt else self._paragraphs.recall
        parts: list[Ids] = []
        n_tokens = 0
        for paragraph in self._tokenizer.pieces(segment):
            parts.append(recall(paragraph, encode))
            n_tokens += len(parts[-1])
            _check(n_tokens, max_tokens)
        return joined(parts)


def _check(n_tokens: int, max_tokens: int | None) -> None:
    if max_tokens is not None and n_tokens > PATIENCE * max_tokens:
        raise PromptTooLongError(n_tokens, max_tokens, is_exact=False)


def _encoded_anew(text: str, make: Callable[[str], Ids]) -> Ids:
    return make(text)


def _cut(text: str) -> list[str]:
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
