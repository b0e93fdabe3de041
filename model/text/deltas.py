"""What a reply's tokens become: raw text cut into pieces and at stop strings, and the deltas that are sent.

Joined per kind the deltas are the whole reply, streamed or not: the text of all :class:`ReasoningDelta` is
the thought, that of all :class:`ContentDelta` the content, and the fragments of one call its arguments.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass

from model.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thought; whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer; whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Call ``index`` (0, 1, ... within the reply) of the tool ``name`` begins; ``id`` is unique."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of call ``index``'s arguments; joined they are one JSON object once the call is complete."""

    index: int
    json_fragment: str


Delta = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same with neighbours of one kind as one."""
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            found[-1] = ContentDelta(last.text + delta.text)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            found[-1] = ReasoningDelta(last.text + delta.text)
        elif isinstance(delta, ToolCallArguments) and isinstance(last, ToolCallArguments):
            found[-1] = ToolCallArguments(delta.index, last.json_fragment + delta.json_fragment)
        else:
            found.append(delta)
    return found


class Detokenizer:
    """Text of one reply, token by token.

    A character whose bytes are spread over tokens comes with the last of them; bytes that can no longer
    become UTF-8 come as U+FFFD. Control tokens that are hidden in replies have no text. Joined, the
    pieces are what decoding all bytes at once gives, without a character that the reply broke off in.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that ``token_id`` completes; may be empty."""
        if token_id in self._tokenizer.hidden_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))


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


class StopReader:
    """Passes content on up to the first stop string, holding back what may be the beginning of one.

    The cut is where the earliest match begins, whichever stop is complete first: with ``ab`` and
    ``abcd`` both asked for, ``ab`` ends the text at once.

    Attributes:
        cut_at: raw position of the first character of the match; None before there is one.
        matched: the stop string that was found there.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = stops
        self._held: list[Piece] = []
        self.cut_at: int | None = None
        self.matched: str | None = None

    def push(self, piece: Piece) -> list[Piece]:
        """The pieces that are now known to lie before any stop."""
        if self.cut_at is not None:
            return []
        self._held.append(piece)
        if not self._stops:
            return self.finish()
        text = "".join(held.text for held in self._held)
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.matched = min(found, key=lambda match: (match[0], len(match[1])))
            return self._take(at, cuts=True)
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
