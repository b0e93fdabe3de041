"""Keeps what people typed from being read as control tokens.

Before rendering, every character in typed text that could begin a control token (``<`` in Qwen's
vocabulary) is swapped for a character that occurs nowhere in the request. The template
moves the text about without knowing; whatever control string stands in the rendered text was then
written by the template itself. Between control strings the characters are swapped back. Guarding the
first character, not whole control strings, also holds where typed pieces meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

STAND_INS = "".join(map(chr, (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xE400))))
"""Unicode's noncharacters, which no text should hold, then some for private use, which icons use."""


class GuardClashError(Exception):
    """Typed text already holds the guard's character: take another guard. Stays behind ``ChatFormat``."""


class Guard:
    """One choice of stand-ins.

    Attributes:
        guarded: the characters that begin control tokens.
        stand_ins: what replaces each of them, position by position.
        mark: one more character that nothing typed holds.
        attempt: 0 for the guard that all requests share but those whose text holds its characters.
    """

    def __init__(self, control_texts: Iterable[str], attempt: int = 0) -> None:
        assert attempt < n_attempts(control_texts)
        self.attempt = attempt
        self.guarded = _firsts(control_texts)
        chosen = STAND_INS[attempt * (len(self.guarded) + 1) :][: len(self.guarded) + 1]
        self.stand_ins, self.mark = chosen[:-1], chosen[-1]
        self._restoring = str.maketrans(self.stand_ins, self.guarded)

    def text(self, typed: str) -> str:
        """``typed`` with its dangerous characters swapped and lone surrogates (a JSON escape can make
        them, UTF-8 cannot) replaced by U+FFFD.

        Raises:
            GuardClashError: ``typed`` holds one of the stand-ins.
        """
        if not typed.isascii():
            if self.mark in typed or any(char in typed for char in self.stand_ins):
                raise GuardClashError
            typed = well_formed(typed)
        for char, stand_in in zip(self.guarded, self.stand_ins, strict=True):
            typed = typed.replace(char, stand_in)
        return typed

    def value(self, typed: object) -> object:
        """``typed`` with every string in it guarded, keys included; other values are kept as they are."""
        if isinstance(typed, str):
            return self.text(typed)
        if isinstance(typed, Mapping):
            return {self.text(str(key)): self.value(value) for key, value in typed.items()}
        if isinstance(typed, Sequence):
            return [self.value(item) for item in typed]
        return typed

    def restore(self, guarded: str) -> str:
        """What was typed."""
        return guarded.translate(self._restoring)


def n_attempts(control_texts: Iterable[str]) -> int:
    """How many guards there are to choose from."""
    return len(STAND_INS) // (len(_firsts(control_texts)) + 1)


def _firsts(control_texts: Iterable[str]) -> str:
    """The characters that may begin a control token. Space is left to the templates, which trim it."""
    return "".join(sorted({text[0] for text in control_texts if text and not text[0].isspace()}))


def well_formed(text: str) -> str:
    """``text`` without lone surrogates: halves of a pair that stand together are joined, others become
    U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Two halves of a pair may have arrived as two escapes: UTF-16 joins them, the rest is replaced.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
