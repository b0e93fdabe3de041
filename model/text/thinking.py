"""Tells a reply's thought from its content, and finds the calls that stand at the end of a thought.

The rule: when the model ends the reply with the thought still open, and nothing but complete calls stands
at its end, each of a known tool and fitting its schema, they are delivered as calls. Any other call inside a
thought is part of the thought: in one that was closed, by whomever, in a reply that was cut, in one that
a grammar rules. To know, text from a ``<tool_call>`` on waits until something follows
that is no call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Literal

from model.text.deltas import Piece, ToolCallArguments, ToolCallStart, n_begun, n_trailing_space
from model.text.messages import END_THINK, THINK
from model.text.schemas.fitting import fits
from model.text.toolcalls import CallDelta, ToolCallReader
from model.text.values import CALL, END_CALL

N_LINE_ENDS = 2
"""What the template writes between a thought and the content."""

Part = tuple[Literal["reasoning", "content"], Piece]


class ThoughtReader:
    """Splits raw text at ``</think>``.

    The thought is trimmed on both sides, as the template trims it when the client sends it back. Of the
    content behind it the two line ends go that the template writes there, and nothing else: the next line may
    be indented. Content without a thought before it stays as it is. A thought that never closes takes all
    of the text.

    Args:
        opens_thought: the prompt left a thought open; else a reply may still begin with ``<think>``.
        may_think: False reads everything as content, tags included.
        has_gap: line ends may stand in front of content that has no thought before it, too.
    """

    def __init__(self, *, opens_thought: bool, may_think: bool = True, has_gap: bool = False) -> None:
        self._state: Literal["before", "thought", "content"] = "before" if may_think else "content"
        self._must_think = opens_thought
        self._drops_space = False
        self._n_line_ends = N_LINE_ENDS if has_gap else 0  # that may still be dropped
        self._held = Piece("", 0)

    @property
    def in_thought(self) -> bool:
        """The text so far ends inside a thought."""
        return self._state == "thought" or (self._state == "before" and self._must_think)

    def goes_on(self, text: str) -> bool:
        """Whether with ``text`` a thought, or the content, is certain to go on to its end."""
        return self._state == "content" or (self._state == "thought" and END_THINK[-1] not in text)

    def push(self, piece: Piece) -> Iterator[Part]:
        """Split more text; what may still turn out to be a tag, or space at a thought's end, waits."""
        self._held = Piece(self._held.text + piece.text, self._held.start if self._held.text else piece.start)
        if self._state == "before":
            self._read_opening()
        if self._state == "thought":
            yield from self._read_thought()
        if self._state == "content":
            yield from self._read_content()

    def finish(self) -> Iterator[Part]:
        """What was still waiting. Space at the end of an open thought is dropped."""
        if self._state == "before":
            self._state = "thought" if self._must_think else "content"
        if self._state == "thought":
            piece = Piece(self._held.text.rstrip(), self._held.start)
            self._held = Piece("", piece.end)
            if piece.text:
                yield "reasoning", piece
        else:
            yield from self._read_content()

    def _read_opening(self) -> None:
        """Decide whether the reply begins with a thought once its first characters tell."""
        text = self._held.text.lstrip()
        if text.startswith(THINK):
            n_chars = self._held.text.index(THINK) + len(THINK)
            self._held = self._held.cut(n_chars)[1]
            self._state = "thought"
        elif not THINK.startswith(text):
            self._state = "thought" if self._must_think else "content"
        if self._state == "thought":
            self._drops_space = True

    def _read_thought(self) -> Iterator[Part]:
        self._drop_space()
        before, tag, _ = self._held.text.partition(END_THINK)
        if tag:
            n_chars, rest = len(before.rstrip()), len(before) + len(tag)
            self._state, self._n_line_ends = "content", N_LINE_ENDS
        else:
            begun = n_begun(before, [END_THINK])
            n_chars = rest = len(before[: len(before) - begun].rstrip())
        if n_chars:
            yield "reasoning", self._held.cut(n_chars)[0]
        self._held = self._held.cut(rest)[1]

    def _read_content(self) -> Iterator[Part]:
        if self._n_line_ends and self._held.text:
            text = self._held.text[: self._n_line_ends]
            n_dropped = len(text) - len(text.lstrip("\n"))
            self._n_line_ends -= n_dropped
            self._held = self._held.cut(n_dropped)[1]
            if self._held.text:
                self._n_line_ends = 0
        piece, self._held = self._held, Piece("", self._held.end)
        if piece.text:
            yield "content", piece

    def _drop_space(self) -> None:
        if self._drops_space:
            text = self._held.text
            self._held = self._held.cut(len(text) - len(text.lstrip()))[1]
            self._drops_space = not self._held.text


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
            self._held = Piece("", held.end)
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
