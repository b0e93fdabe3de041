"""Keeps what people typed from being read as control tokens.

Before rendering, every character in typed text that could begin a control token (``<`` in Qwen's
vocabulary) is swapped for a private-use character that occurs nowhere in the request. The template
moves the text about without knowing; whatever control string stands in the rendered text was then
written by the template itself. Between control strings the characters are swapped back. Guarding the
first character, not whole control strings, also holds where typed pieces meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

PRIVATE_USE = range(0xE000, 0xE400)


class GuardClashError(Exception):
    """Typed text already holds the guard's character: take another guard. Never leaves ``model/chat``."""


class Guard:
    """One choice of stand-ins.

    Attributes:
        guarded: the characters that begin control tokens.
        stand_ins: what replaces each of them, position by position.
        mark: one more character that nothing typed holds.
        attempt: 0 for the guard that all requests share but those whose text holds its characters.
    """

    def __init__(self, control_texts: Iterable[str], attempt: int = 0) -> None:
        firsts = sorted({text[0] for text in control_texts if text and not text[0].isspace()})
        start = PRIVATE_USE.start + attempt * (len(firsts) + 1)
        self.attempt = attempt
        self.guarded = "".join(firsts)
        self.stand_ins = "".join(chr(start + i) for i in range(len(firsts)))
        self.mark = chr(start + len(firsts))
        assert start + len(firsts) < PRIVATE_USE.stop
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


def well_formed(text: str) -> str:
    """``text`` without lone surrogates: halves of a pair that stand together are joined, others become
    U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Two halves of a pair may have arrived as two escapes: UTF-16 joins them, the rest is replaced.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
