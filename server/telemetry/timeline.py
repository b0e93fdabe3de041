"""The last requests of each slot, and in words what each of them cost: for the slot's owner."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from cache.planner import SlotKey
from server.events import Divergence, PlanReport
from server.telemetry.record import RequestRecord

_MAX_SLOTS, _MAX_TURNS = 512, 50
_LONGEST_TEXT = 60
_CONTEXT = 8
"""Characters shown behind a difference."""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A request that is over.

    Attributes:
        at_unix_s: when it ended.
        first_token_s: seconds from its arrival to its first token; None where there was none.
    """

    id: str
    at_unix_s: float
    report: PlanReport
    first_token_s: float | None


class Timeline:
    """Remembers so many turns of so many slots; those that were quiet for longest go.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._turns: LRUCache[SlotKey, deque[PastTurn]] = LRUCache(_MAX_SLOTS)

    def note(self, record: RequestRecord) -> None:
        """Remember a request that has ended."""
        if record.slot is None:
            return
        waited_s = None if record.first_token_at is None else record.first_token_at - record.started_at
        turns = self._turns.get(record.slot) or deque(maxlen=_MAX_TURNS)
        turns.extend(PastTurn(record.id, self._clock(), report, waited_s) for report in record.plans)
        self._turns[record.slot] = turns

    def of(self, slot: SlotKey) -> tuple[PastTurn, ...]:
        """The turns of ``slot``, oldest first."""
        return tuple(self._turns.get(slot, ()))

    def forget(self, slot: SlotKey) -> None:
        """Forget the turns of ``slot``, whose texts are as private as the slot."""
        self._turns.pop(slot, None)


def explain(report: PlanReport) -> str:
    """What happened and what can be done about it, in sentences for somebody who writes a client."""
    n_again = report.shared_tokens - report.reused_tokens
    if report.divergence is None:
        return report.reason if n_again == 0 else f"{report.reason} {_again(n_again)}"
    sentences = [_what_changed(report.divergence), _what_it_cost(report, n_again), _advice(report.divergence)]
    return " ".join(sentence for sentence in sentences if sentence)


def _what_changed(parted: Divergence) -> str:
    place = (
        f"message {parted.message} ({parted.role})" if parted.message >= 0 else "what precedes the messages"
    )
    kept, sent = _differing(parted.kept, parted.sent)
    return f"The client changed {place}: “{kept}” was remembered, “{sent}” was sent."


def _what_it_cost(report: PlanReport, n_again: int) -> str:
    n_new = report.prompt_tokens - report.shared_tokens
    if report.reused_tokens == 0:
        return f"No checkpoint lies before that point, so all {report.prompt_tokens} tokens were read."
    behind = f"The {n_new} tokens from there on were read"
    return f"{behind}, and {_again(n_again)[0].lower()}{_again(n_again)[1:]}" if n_again else f"{behind}."


def _again(n_again: int) -> str:
    plural = "" if n_again == 1 else "s"
    return f"{n_again} token{plural} before it again, from the nearest checkpoint."


def _advice(parted: Divergence) -> str:
    if parted.role == "system" or parted.message < 0:
        return "What changes on each turn (a date, a number) belongs at the end of the last user message."
    if parted.role == "assistant":
        return "A reply is reused best when it is sent back as it came, its reasoning_content included."
    if parted.role == "tool" and not parted.is_last:
        return "Earlier results of tools stay reusable when they are sent back unchanged."
    return ""


def _differing(kept: str, sent: str) -> tuple[str, str]:
    """Both texts up to a little behind the place from which they are the same again."""
    n_same = next((i for i, (a, b) in enumerate(zip(kept[::-1], sent[::-1], strict=False)) if a != b), 0)
    n_cut = max(0, n_same - _CONTEXT)
    return _short(kept[: len(kept) - n_cut]), _short(sent[: len(sent) - n_cut])


def _short(text: str) -> str:
    """One line, no longer than a person reads."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}…"
