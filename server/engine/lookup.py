"""Drafts by lookup: finds where the last few tokens occurred before, and proposes what followed them there.

This drafts replies that quote, rewrite or repeat, without any model: files that an agent edits, answers about
a document, tables, loops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MIN_MATCH = 3
"""The shortest sequence that counts as a match, in tokens."""
MAX_MATCH = 32
"""The longest match that is measured."""

_WEIGHTS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_ALL = 2**64 - 1
_BREAK = 2**32 - 1  # separates texts; no token id
_BREAKS = np.array([_BREAK], np.uint32)
_NOWHERE = 0


class Lookup:
    """An index over texts of token ids, the last of which grows.

    A hash table maps every three consecutive tokens to the end of their latest occurrence. It is built at the
    first token, in two NumPy passes; each further token takes a few microseconds.

    Args:
        quotes: uint32 arrays; texts that may be quoted, preferred over ``text`` itself.
        text: uint32 [n], which grows.

    Attributes:
        n_added: tokens added so far.
    """

    def __init__(self, quotes: Sequence[NDArray[np.uint32]], text: NDArray[np.uint32]) -> None:
        self._texts = [*quotes, text]
        self.n_added = 0
        self._n = 0
        self._ids = np.zeros(0, np.uint32)
        self._n_bits = 0
        self._table = np.zeros(0, np.int32)  # end of a sequence, exclusive; 0 for none
        self._last = (_BREAK,) * MIN_MATCH
        self._place = 0  # the table index of those
        self._follows = _NOWHERE  # position of the token that followed the match
        self._n_matched = 0

    def _build(self) -> None:
        known = np.concatenate([part for text in self._texts for part in (_BREAKS, text)])
        self._n, n_text = len(known), len(self._texts[-1])
        self._texts = []
        self._ids = np.full(2 * max(self._n, 512), _BREAK, np.uint32)
        self._ids[: self._n] = known
        self._n_bits = len(self._ids).bit_length()
        self._table = np.zeros(2**self._n_bits, np.int32)
        self._enter(self._n - n_text, self._n)
        self._enter(0, self._n - n_text)
        self._last = (*self._last, *known[-MIN_MATCH:].tolist())[-MIN_MATCH:]
        self._place = self._place_of(*self._last)
        self._find()

    @property
    def n_matched(self) -> int:
        """The length of the longest suffix found before, up to :data:`MAX_MATCH`; 0 if it is too short."""
        return self._n_matched

    def add(self, token: int) -> None:
        """Append ``token`` to the text."""
        if self._texts:
            self._build()
        if self._n == len(self._ids):
            self._ids = np.concatenate([self._ids, np.full(len(self._ids), _BREAK, np.uint32)])
        self._table[self._place] = self._n
        came_as_expected = self._n_matched > 0 and self._ids.item(self._follows) == token
        self._ids[self._n] = token
        self._n += 1
        self.n_added += 1
        self._last = (*self._last[1:], token)
        self._place = self._place_of(*self._last)
        if came_as_expected:
            self._follows += 1
            self._n_matched = min(self._n_matched + 1, MAX_MATCH)
        else:
            self._find()

    def draft(self, n_tokens: int) -> list[int]:
        """What followed the match, at most ``n_tokens``; a text that repeats itself is drafted round and
        round."""
        if not self._n_matched:
            return []
        found = self._ids[self._follows : min(self._follows + n_tokens, self._n)].tolist()
        draft: list[int] = found[: found.index(_BREAK)] if _BREAK in found else found
        period = self._n - self._follows
        while 0 < period == len(found) < n_tokens and len(draft) == len(found):
            missing = n_tokens - len(found)
            return draft + (draft * (missing // period + 1))[:missing]
        return draft

    def _find(self) -> None:
        """Look up the last tokens."""
        self._n_matched = 0
        self._follows = self._table.item(self._place)
        if self._follows == _NOWHERE:
            return
        n = min(MAX_MATCH, self._follows)
        there = self._ids[self._follows - n : self._follows][::-1]
        here = self._ids[self._n - n : self._n][::-1]
        differs = (there != here) | (here == _BREAK)
        n_same = int(differs.argmax()) if differs.any() else n
        self._n_matched = n_same if n_same >= MIN_MATCH else 0

    def _place_of(self, a: int, b: int, c: int) -> int:
        """The table index of three tokens in a row."""
        return ((a * _WEIGHTS[0] + b * _WEIGHTS[1] + c * _WEIGHTS[2]) & _ALL) >> (64 - self._n_bits)

    def _enter(self, start: int, end: int) -> None:
        """Enter every sequence of three tokens in [start, end) that another token follows."""
        first, n = start, end - start - MIN_MATCH
        if n <= 0:
            return
        ids = self._ids[first:end].astype(np.uint64)
        hashes = ids[:n] * np.uint64(_WEIGHTS[0])
        for i in range(1, MIN_MATCH):
            hashes += ids[i : n + i] * np.uint64(_WEIGHTS[i])
        hashes >>= np.uint64(64 - self._n_bits)
        self._table[hashes] = np.arange(start + MIN_MATCH, start + MIN_MATCH + n, dtype=np.int32)
