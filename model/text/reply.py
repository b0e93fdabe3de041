"""Reads a reply's tokens as they are sampled: text, thought, content, calls, stop strings.

::

    token -> Detokenizer -> ThoughtReader -> thought -> ThoughtCallReader -> ReasoningDelta
                                          -> content -> ToolCallReader    -> ToolCallStart, -Arguments
                                                                          -> StopReader -> ContentDelta

Every stage holds back only what may still mean something else, and is flushed through the later ones.
Streamed or read whole, the joined deltas are the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from model.text.deltas import ContentDelta, Delta, Detokenizer, Piece, ReasoningDelta, StopReader, joined
from model.text.thinking import ThoughtCallReader, ThoughtReader
from model.text.tokenizer import TextTokenizer
from model.text.toolcalls import ToolCallReader, schemas_by_name


class ReplyReader:
    """One reply.

    Args:
        tokenizer: turns ids into bytes.
        opens_thought: the prompt's tail left a thought open.
        tools: the request's tools; None (or none) reads no calls.
        stops: stop strings, matched in visible content only: not in a thought, not inside a call.
        may_think: False reads all text as content (plain completions, a prompt that has begun the content).
        is_constrained: a grammar rules the content; then no call in a thought is delivered.

    Attributes:
        n_tokens: tokens pushed.
        n_reasoning_tokens: those of the thought, its closing tag included.
        content_ids: the ids pushed since the thought ended; all of them where there was none.
        stopped: a stop string was matched; nothing more comes out.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        opens_thought: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stops: tuple[str, ...] = (),
        may_think: bool = True,
        is_constrained: bool = False,
    ) -> None:
        schemas = schemas_by_name(tools) if tools else {}
        self._is_constrained = is_constrained
        self._text = Detokenizer(tokenizer)
        self._thought = ThoughtReader(
            opens_thought=opens_thought, may_think=may_think, has_gap=is_constrained
        )
        self._thought_calls = ThoughtCallReader(schemas) if schemas else None
        self._calls = ToolCallReader(schemas) if schemas else None
        self._stops = StopReader(stops)
        self._n_chars = 0
        self._token_starts: list[int] = []
        self._content_ranges: list[tuple[int, int]] = []
        self._n_told = 0
        self._shown_end = 0
        self.n_reasoning_tokens = 0
        self.content_ids: list[int] = []

    @property
    def n_tokens(self) -> int:
        return len(self._token_starts)

    @property
    def stopped(self) -> bool:
        return self._stops.cut_at is not None

    @property
    def stop(self) -> str | None:
        """The stop string that was matched."""
        return self._stops.matched

    @property
    def in_thought(self) -> bool:
        """The reply so far ends inside a thought."""
        return self._thought.in_thought

    @property
    def in_call(self) -> bool:
        """The reply so far ends inside a call that is being delivered: ended here, it is a broken one."""
        return self._calls is not None and self._calls.in_call

    @property
    def n_calls(self) -> int:
        """Calls delivered whole."""
        readers = (self._calls, self._thought_calls)
        return sum(reader.n_complete for reader in readers if reader is not None)

    @property
    def called_tools(self) -> bool:
        """At least one call was delivered whole."""
        return self.n_calls > 0

    @property
    def cut_token_index(self) -> int:
        """How many tokens lie wholly before the stop string; all of them when there was none."""
        cut_at = self._stops.cut_at
        if cut_at is None:
            return self.n_tokens
        # A token without characters of its own, the first half of one, goes with the character.
        starts = enumerate(self._token_starts)
        whole = (i for i, start in starts if start >= cut_at or self._token_end(i) > cut_at)
        return next(whole, self.n_tokens)

    @property
    def is_settled(self) -> bool:
        """All text so far has gone out as content: no stop string to come reaches into it."""
        return self._shown_end == self._n_chars

    def push(self, token_id: int) -> list[Delta]:
        """Read one token.

        Returns:
            What is now certain, in order; adjacent texts of one kind joined.
        """
        return self.push_all([token_id])

    def push_all(self, token_ids: Sequence[int]) -> list[Delta]:
        """Read tokens: the same as to push each, and faster where no thought can end among them.

        Returns:
            as :meth:`push` does, over all of them.
        """
        texts = [self._text.push(token_id) for token_id in token_ids]
        if self._thought.goes_on("".join(texts)):
            return joined(self._take(token_ids, texts))
        each = zip(token_ids, texts, strict=True)
        return joined(delta for token_id, text in each for delta in self._take([token_id], [text]))

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """The reply is over: release what was held back.

        Args:
            is_cut: it was ended from outside, by its length; the model did not end it.
        """
        return joined(self._finish(is_cut))

    def take_content_tokens(self) -> tuple[int, ...]:
        """Indices of the tokens whose text has gone out as content since the last call, in order."""
        ranges, self._content_ranges = self._content_ranges, []
        taken: list[int] = []
        for start, end in ranges:
            first, last = bisect_left(self._token_starts, start), bisect_left(self._token_starts, end)
            if first and self._token_end(first - 1) > start:
                first -= 1  # a token that began in space before the content, or in an earlier part of it
            taken += range(max(first, self._n_told), last)
            self._n_told = last
        return tuple(taken)

    def _token_end(self, index: int) -> int:
        return self._token_starts[index + 1] if index + 1 < self.n_tokens else self._n_chars

    def _take(self, token_ids: Sequence[int], texts: Sequence[str]) -> Iterator[Delta]:
        """Read tokens with their ``texts``, behind none of which but the last a thought begins or ends."""
        in_thought = self.in_thought
        at = self._n_chars
        for text in texts:
            self._token_starts.append(at)
            at += len(text)
        yield from self._read("".join(texts))
        if in_thought:
            self.n_reasoning_tokens += len(token_ids)
        else:
            self.content_ids += token_ids

    def _read(self, text: str) -> Iterator[Delta]:
        piece = Piece(text, self._n_chars)
        self._n_chars += len(text)
        if text and not self.stopped:
            for kind, part in self._thought.push(piece):
                yield from self._reasoning(part) if kind == "reasoning" else self._content(part)
            if not self.in_thought:
                yield from self._released()

    def _finish(self, is_cut: bool) -> Iterator[Delta]:
        if self.stopped:
            return
        for kind, part in self._thought.finish():
            yield from self._reasoning(part) if kind == "reasoning" else self._content(part)
        if self._thought_calls is not None and not is_cut and not self._is_constrained:
            for read in self._thought_calls.finish():
                yield ReasoningDelta(read.text) if isinstance(read, Piece) else read
        yield from self._released()
        if self._calls is not None:
            yield from self._visible(self._calls.finish())
        yield from self._shown(self._stops.finish())

    def _reasoning(self, piece: Piece) -> Iterator[Delta]:
        pieces = self._thought_calls.push(piece) if self._thought_calls is not None else (piece,)
        for part in pieces:
            yield ReasoningDelta(part.text)

    def _content(self, piece: Piece) -> Iterator[Delta]:
        yield from self._released()
        yield from self._visible(self._calls.push(piece) if self._calls is not None else (piece,))

    def _released(self) -> Iterator[Delta]:
        """The thought is closed: what may have been a call in it is thought."""
        if self._thought_calls is not None:
            for part in self._thought_calls.release():
                yield ReasoningDelta(part.text)

    def _visible(self, reads: Iterable[Any]) -> Iterator[Delta]:
        for read in reads:
            if self.stopped:
                return
            if isinstance(read, Piece):
                yield from self._shown(self._stops.push(read))
            else:
                # No stop string reaches across a call.
                yield from self._shown(self._stops.finish())
                yield read

    def _shown(self, pieces: Iterable[Piece]) -> Iterator[Delta]:
        for piece in pieces:
            self._content_ranges.append((piece.start, piece.end))
            self._shown_end = piece.end
            yield ContentDelta(piece.text)


def close_thought_ids(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The ids that end an open thought from outside, when its budget is spent."""
    return tuple(int(i) for i in tokenizer.encode("\n</think>\n\n"))
