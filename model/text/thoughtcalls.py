"""A call that a model writes at the end of a thought it never closes.

The rule: when the thought is still open at the end of the reply and nothing but complete calls stands at
its end, each of a known tool and fitting its schema, they are delivered as calls. Any other call inside
a thought is part of the thought. To know, text from a ``<tool_call>`` on waits until something follows
that is no call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from model.text.arguments import fits
from model.text.deltas import ToolCallArguments, ToolCallStart
from model.text.pieces import Piece, n_begun, n_trailing_space
from model.text.toolcalls import CALL, END_CALL, CallDelta, ToolCallReader


class ThoughtCallReader:
    """Passes reasoning on, except for calls at its end.

    Attributes:
        n_complete: calls delivered by :meth:`finish`.
    """

    def __init__(self, schemas: Mapping[str, object]) -> None:
        self._schemas = schemas
        self._held = Piece("", 0)
        self.n_complete = 0

    def push(self, piece: Piece) -> Iterator[Piece]:
        """The text that is certainly no call at the end of the thought."""
        self._held = Piece(self._held.text + piece.text, self._held.start if self._held.text else piece.start)
        n_chars = self._n_plain()
        if n_chars:
            plain, self._held = self._held.cut(n_chars)
            yield plain

    def release(self) -> Iterator[Piece]:
        """The thought is closed: what waits belongs to it."""
        held, self._held = self._held, Piece("", self._held.end)
        if held.text:
            yield held

    def finish(self) -> Iterator[Piece | CallDelta]:
        """The reply ended inside the thought: what waits is calls or, if not all of it is, thought."""
        reader = ToolCallReader(self._schemas)
        held = Piece(self._held.text.lstrip(), self._held.end - len(self._held.text.lstrip()))
        reads = [*reader.push(held), *reader.finish()]
        calls = [read for read in reads if not isinstance(read, Piece)]
        if calls and len(calls) == len(reads) and not reader.in_call and self._all_fit(calls):
            self.n_complete = reader.n_complete
            yield from calls
        else:
            yield from self.release()

    def _n_plain(self) -> int:
        """Characters of the held text before the first ``<tool_call>`` from which on there may be nothing
        but calls, and before the space in front of it."""
        text = self._held.text
        at = text.find(CALL)
        while at >= 0 and not _may_be_calls(text[at:]):
            at = text.find(CALL, at + 1)
        if at < 0:
            at = len(text) - n_begun(text, [CALL])
        return at - n_trailing_space(text[:at])

    def _all_fit(self, calls: list[CallDelta]) -> bool:
        names = [call.name for call in calls if isinstance(call, ToolCallStart)]
        texts = [""] * len(names)
        for call in calls:
            if isinstance(call, ToolCallArguments):
                texts[call.index] += call.json_fragment
        return all(fits(self._schemas[n], json.loads(text)) for n, text in zip(names, texts, strict=True))


def _may_be_calls(text: str) -> bool:
    """Whether ``text`` is calls one after the other, the last of them perhaps not finished."""
    *complete, rest = text.split(END_CALL)
    if not all(call.lstrip().startswith(CALL) for call in complete):
        return False
    rest = rest.lstrip()
    return rest.startswith(CALL) or CALL.startswith(rest)
