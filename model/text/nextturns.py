"""Where the prompts of next turns part from this one.

A turn later the template writes part of the history anew: it drops thoughts, and writes the assistant's
head in another way. The points up to which nothing changes are found by rendering what may come next
and comparing ids. Exactly so, that costs a render of the whole conversation for each possibility; for
the family's templates the end of the conversation tells as much (:func:`tail_of`), because nothing
before the last question depends on what follows it. Whether that holds is tried out on a few
conversations when a format is loaded, and checked against the prompt's own blocks every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from model.text.blocks import Ids, n_common
from model.text.messages import Message, is_question

N_GROUPS_KEPT = 2
"""Assistant messages, with their results, kept at either end of a long tool loop."""

Blocks = list[tuple[str, Ids]]
"""The text and ids of each block of a render, see ``model/text/blocks.py``."""
Render = Callable[[Sequence[Message]], Blocks]


def next_turns(*, tools: bool, content: str = "") -> Iterator[list[Message]]:
    """What may come next, with placeholder texts: a reply and a question, and with ``tools`` a call and
    its result; each with the thought sent back and without. The reply's content begins with ``content``."""
    call = {"type": "function", "function": {"name": "a", "arguments": {}}}
    for thought in ({}, {"reasoning_content": "a"}):
        reply: Message = {"role": "assistant", "content": f"{content}a", **thought}
        yield [reply, {"role": "user", "content": "a"}]
        if tools:
            yield [reply | {"tool_calls": [call]}, {"role": "tool", "content": "a"}]


def shared_points(
    prompt: Blocks, history: Sequence[Message], turns: Sequence[Sequence[Message]], render: Render
) -> tuple[int, ...]:
    """The exact points, ascending, each greater than 0 and less than the prompt's length.

    Args:
        prompt: the prompt's blocks.
        history: the messages before the turns.
        turns: what may come next.
        render: renders messages with the head of a next reply.
    """
    return _points(prompt, (_point(prompt, render([*history, *turn])) for turn in turns))


def shared_points_from_tail(
    prompt: Blocks, history: Sequence[Message], turns: Sequence[Sequence[Message]], render: Render
) -> tuple[int, ...] | None:
    """The same from the end of the conversation alone; None where the prompt does not bear it out."""
    tail = tail_of(history)
    short = render(tail)
    starts = list(accumulate((len(ids) for _, ids in prompt), initial=0))
    points: list[int] = []
    for turn in turns:
        following = render([*tail, *turn])
        index = _first_difference(short, following)
        place = _place_in(prompt, short, index)
        if place is None:
            return None
        points.append(starts[place] + _n_common_at(short, following, index))
    return _points(prompt, points)


def tail_of(messages: Sequence[Message]) -> list[Message]:
    """The messages from the last question on. Of a long tool loop behind it only both ends."""
    last = max((i for i, m in enumerate(messages) if is_question(m)), default=0)
    tail = list(messages[last:])
    replies = [i for i, m in enumerate(tail) if m["role"] == "assistant"]
    if len(replies) <= 2 * N_GROUPS_KEPT:
        return tail
    return tail[: replies[N_GROUPS_KEPT]] + tail[replies[-N_GROUPS_KEPT] :]


def _points(prompt: Blocks, points: Sequence[int] | Iterator[int]) -> tuple[int, ...]:
    n = sum(len(ids) for _, ids in prompt)
    return tuple(sorted({point for point in points if 0 < point < n}))


def _point(prompt: Blocks, following: Blocks) -> int:
    index = _first_difference(prompt, following)
    return sum(len(ids) for _, ids in prompt[:index]) + _n_common_at(prompt, following, index)


def _first_difference(one: Blocks, other: Blocks) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a[0] != b[0]), min(len(one), len(other)))


def _n_common_at(one: Blocks, other: Blocks, index: int) -> int:
    within = index < min(len(one), len(other))
    return n_common(one[index][1], other[index][1]) if within else 0


def _place_in(prompt: Blocks, short: Blocks, index: int) -> int | None:
    """The block of the prompt that block ``index`` of the short render is: counted from the last question
    on, where what lies between is the same, else from the end. In this order, because the calls of a
    loop may all read alike."""
    if index >= len(short):
        return None
    texts, short_texts = [text for text, _ in prompt], [text for text, _ in short]
    first = next((i for i, text in enumerate(short_texts) if i and not _is_system(text)), len(short))
    if first <= index and short_texts[first] in texts:
        question = len(texts) - 1 - texts[::-1].index(short_texts[first])
        place = question + index - first
        if texts[question : place + 1] == short_texts[first : index + 1]:
            return place
    from_end = len(texts) - len(short_texts) + index
    return from_end if from_end >= 0 and texts[from_end:] == short_texts[index:] else None


def _is_system(block: str) -> bool:
    return "system\n" in block[: block.find("\n") + 1]
