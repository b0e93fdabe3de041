"""Knows which positions of a prompt deserve a checkpoint. Pure: positions in, positions out.

A position p names the state after the first p ids. In order of worth: the points every next render
of the conversation shares, the start of the last user message, the end of system and tools, the
point where the prompt parted from its entry (so that the same change costs nothing the second
time: clocks and nonces), the start of the last message (where another user's message stands in the next
prompt when the reply is lost), one id short of the end of a prompt that is asked again, then message starts
and marks inside long messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cache.ring import spread

FIRST_MARK = 64
"""Tokens between a message's end and the last mark inside it; the gaps before it double."""

MERGE_TOKENS = 16
"""Positions of the first rank so close after another add nothing: feeding these tokens is free."""

DECODE_GAP = 512
"""Generated tokens between two states kept while decoding."""


class Place(Enum):
    """What a position of a conversation is, for whoever may go back there."""

    NEXT = "where the next turn is expected to leave it"
    QUESTION = "the start of a user's message, which may be edited"
    MESSAGE = "the start of another message"
    SYSTEM = "within the system and tools block"
    INSIDE = "inside a message, or none is known"


@dataclass(frozen=True, slots=True)
class PromptShape:
    """What the cache may know of a prompt beyond its ids. All positions count tokens from its start.

    Attributes:
        message_starts: where messages begin, ascending.
        shared_points: positions that every next render of this conversation shares, ascending.
        last_user_start: where the last user query begins; None when there is none.
        system_end: end of the system and tools block; 0 when there is none.
        questions: where user messages begin, ascending; the last of them is ``last_user_start``.
    """

    message_starts: tuple[int, ...] = ()
    shared_points: tuple[int, ...] = ()
    last_user_start: int | None = None
    system_end: int = 0
    questions: tuple[int, ...] = ()

    @property
    def keep(self) -> frozenset[int]:
        """Positions that the next turn most likely goes back to: a ring must not thin them."""
        last_user = () if self.last_user_start is None else (self.last_user_start,)
        points = (*self.shared_points, *last_user, self.system_end, *self.message_starts[-1:])
        return frozenset(p for p in points if p > 0)

    def place_of(self, position: int) -> Place:
        """What a prompt that leaves the conversation at ``position``, or just behind it, goes back to."""
        if self.shared_points and position >= self.shared_points[0]:
            return Place.NEXT
        if position <= self.system_end:
            return Place.SYSTEM
        index = bisect_right(self.message_starts, position) - 1
        if index < 0:
            return Place.INSIDE
        is_question = self.message_starts[index] in self.questions
        return Place.QUESTION if is_question else Place.MESSAGE


def choose_captures(
    shape: PromptShape,
    *,
    start: int,
    end: int,
    parted_at: int | None,
    max_count: int,
    is_repeated: bool = False,
) -> tuple[int, ...]:
    """The positions p with ``start`` < p < ``end`` to keep a state at, ascending.

    Where the next render shares the whole prompt, that is one id short of its end: the same prompt may come
    again, and an id must be left to feed.

    Args:
        shape: the prompt's boundaries.
        start: first id to feed.
        end: the prompt's length; the state there is the live one.
        parted_at: where the prompt unexpectedly left its entry, or None.
        max_count: positions at most; the worthiest stay.
        is_repeated: whether the same prompt was asked before. It may be once more, and then only the id that
            must be fed should be left.
    """

    last_user = () if shape.last_user_start is None else (shape.last_user_start,)
    parted = () if parted_at is None else (parted_at,)
    shared = tuple(end - 1 if p == end else p for p in shape.shared_points)
    worthiest = (*shared, *last_user, shape.system_end, *parted)
    first_rank = _apart([p for p in worthiest if start < p < end])
    # However close to a shared point: what comes in the place of a lost reply parts before that.
    first_rank += [p for p in shape.message_starts[-1:] if start < p < end and p not in first_rank]
    if is_repeated and start < end - 1 and end - 1 not in first_rank:
        first_rank.append(end - 1)
    second_rank = {p for p in shape.message_starts if start < p < end}
    second_rank.update(_marks(shape, start, end))
    kept = first_rank[:max_count]
    return _thinned({*kept, *second_rank}, set(kept), end, max_count)


def _apart(positions: Sequence[int]) -> list[int]:
    """``positions`` in their order of worth, without those close after another one."""
    return [p for p in dict.fromkeys(positions) if not any(0 < p - q < MERGE_TOKENS for q in positions)]


def _marks(shape: PromptShape, start: int, end: int) -> list[int]:
    """Marks in every message that reaches into (start, end): gaps double away from its end.

    So in the system block too: what changes there is most often a clock or a nonce in the last line.
    """
    starts = sorted({0, shape.system_end, *(p for p in shape.message_starts if p > shape.system_end)})
    marks = []
    for begin, stop in zip(starts, [*starts[1:], end], strict=True):
        gap, mark = FIRST_MARK, stop - FIRST_MARK
        # A mark closer to the message's start than to its neighbour adds nothing to that start.
        while mark - begin > gap // 2 and mark > start:
            if mark < end:
                marks.append(mark)
            gap *= 2
            mark -= gap
    return marks


def _thinned(positions: set[int], keep: set[int], end: int, max_count: int) -> tuple[int, ...]:
    """``positions`` cut to ``max_count`` by the ring's own rule, so that what is taken is what stays."""
    kept = spread(sorted(positions), end, keep, max_count)
    while len(kept) > max_count:  # only first-class positions and the two ends are left: an end gives way
        del kept[next(i for i in (0, -1) if kept[i] not in keep)]
    return tuple(kept)


def due_while_decoding(length: int, newest: int) -> bool:
    """Whether a reply that has grown to ``length`` tokens should keep a state, the newest being at
    ``newest``."""
    return length - newest >= DECODE_GAP
