"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from model.text.pieces import Piece, n_begun


class StopReader:
    """Passes content on up to the first stop string, holding back what may be the beginning of one.

    The cut is where the earliest match begins, whichever stop is complete first: with ``ab`` and
    ``abcd`` both asked for, ``ab`` ends the text at once.

    Attributes:
        cut_at: raw position of the first character of the match; None before there is one.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = stops
        self._held: list[Piece] = []
        self.cut_at: int | None = None

    def push(self, piece: Piece) -> list[Piece]:
        """The pieces that are now known to lie before any stop."""
        if self.cut_at is not None:
            return []
        self._held.append(piece)
        if not self._stops:
            return self.finish()
        text = "".join(held.text for held in self._held)
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            return self._take(min(found), cuts=True)
        return self._take(len(text) - n_begun(text, self._stops))

    def finish(self) -> list[Piece]:
        """What was held back; no stop can come of it any more."""
        held, self._held = self._held, []
        return [piece for piece in held if piece.text]

    def _take(self, n_chars: int, *, cuts: bool = False) -> list[Piece]:
        """The first ``n_chars`` held characters; with ``cuts`` the rest is gone for good."""
        taken: list[Piece] = []
        while self._held and n_chars >= len(self._held[0].text):
            n_chars -= len(self._held[0].text)
            taken.append(self._held.pop(0))
        if self._held and n_chars:
            before, self._held[0] = self._held[0].cut(n_chars)
            taken.append(before)
        if cuts:
            self.cut_at = self._held[0].start
            self._held = []
        return [piece for piece in taken if piece.text]
