"""Text that is still on its way from tokens to deltas, and how much of it must wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a reply's raw text that lies at the half-open range [start, end) of its characters."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    def cut(self, n_chars: int) -> tuple[Piece, Piece]:
        """The first ``n_chars`` characters, and the rest."""
        return Piece(self.text[:n_chars], self.start), Piece(self.text[n_chars:], self.start + n_chars)


def n_begun(text: str, marks: Iterable[str]) -> int:
    """Length of the longest end of ``text`` with which one of ``marks`` begins and does not yet end."""
    longest = 0
    for mark in marks:
        at = text.find(mark[0], max(len(text) - len(mark) + 1, 0))
        while at >= 0 and not mark.startswith(text[at:]):
            at = text.find(mark[0], at + 1)
        longest = max(longest, len(text) - at if at >= 0 else 0)
    return longest


def n_trailing_space(text: str) -> int:
    """How many white-space characters ``text`` ends with."""
    return len(text) - len(text.rstrip())
