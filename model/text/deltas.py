"""What a reply grows by: the pieces a reader of tokens hands on, in the order they were written.

Joined per kind they are the whole reply, streamed or not: the text of all :class:`ReasoningDelta` is
the thought, that of all :class:`ContentDelta` the content, and the fragments of one call its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
