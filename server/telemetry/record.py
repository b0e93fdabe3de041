"""The record of a request: its line in the log, the times for metrics and traces, and its place among the
last turns of its slot, each of which can be explained to the slot's owner."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cachetools import LRUCache

from cache.planner import SlotKey
from server.events import Divergence, Event, Failed, Finished, Planned, PlanReport, Progress
from server.telemetry.log import safe

requests_log = logging.getLogger("crossturn.requests")


@dataclass
class RequestRecord:
    """What is known of one request, from its arrival to its end.

    Attributes:
        id: the request's id, which the client sees, too.
        clock: seconds, monotonic.
        on_end: called with the record when the request has ended.
        who: ``user`` or ``safety_identifier`` of the request, if it had one.
        slot: the slot that the request used.
        trace_parent: the header ``traceparent`` of the request.
        n_written: tokens of each reply, by its index.
        started_at, planned_at, first_token_at, ended_at: by the clock; None for what has not happened.
    """

    id: str
    clock: Callable[[], float]
    on_end: Callable[[RequestRecord], None]
    who: str | None = None
    slot: SlotKey | None = None
    thinking: bool | None = None
    trace_parent: str | None = None
    plans: list[PlanReport] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    n_written: dict[int, int] = field(default_factory=dict)
    failure: Failed | None = None
    started_at: float = field(init=False)
    planned_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None

    def __post_init__(self) -> None:
        self.started_at = self.clock()

    def describe(self, *, who: str | None, thinking: bool | None) -> None:
        """Add what is known only once the request is parsed and rendered."""
        self.who, self.thinking = who, thinking

    def observe(self, event: Event) -> None:
        """Take note of ``event``."""
        match event:
            case Planned():
                if self.planned_at is None:
                    self.planned_at = self.clock()
                self.plans.append(event.report)
            case Progress():
                if self.first_token_at is None:
                    self.first_token_at = self.clock()
                self.n_written[event.index] = event.n_tokens
            case Finished():
                self.finished.append(event)
                self.n_written[event.index] = event.n_tokens
            case Failed():
                self.failure = event

    @property
    def n_prompt_tokens(self) -> int:
        return sum(plan.prompt_tokens for plan in self.plans)

    @property
    def n_reused_tokens(self) -> int:
        return sum(plan.reused_tokens for plan in self.plans)

    @property
    def n_reply_tokens(self) -> int:
        return sum(self.n_written.values())

    @property
    def n_thought_tokens(self) -> int:
        return sum(reply.n_reasoning_tokens for reply in self.finished)

    @property
    def outcome(self) -> str:
        """How the request ended: the finish reasons, or the kind of failure."""
        if self.failure is not None:
            return self.failure.kind
        return ",".join(sorted({reply.reason for reply in self.finished})) or "cancelled"

    def close(self) -> None:
        """Log the request; called once, when it has ended."""
        self.ended_at = self.clock()
        self.on_end(self)
        level = logging.WARNING if self.failure and self.failure.kind != "cancelled" else logging.INFO
        requests_log.log(level, "%s", self.line(), extra={"fields": self.fields()})

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of all replies together, after the first token; None if there was no second one."""
        if self.first_token_at is None:
            return None
        decoded_s = (self.ended_at or self.clock()) - self.first_token_at
        return (self.n_reply_tokens - 1) / decoded_s if decoded_s > 0 and self.n_reply_tokens > 1 else None

    def fields(self) -> dict[str, Any]:
        """What is known, by name, the plan's reason last."""
        fields: dict[str, Any] = {"id": self.id}
        for plan in self.plans[:1]:
            fields |= {"slot": plan.slot, "mode": plan.mode}
            if plan.parent is not None:
                fields["parent"] = plan.parent
        fields |= {
            "prompt": self.n_prompt_tokens,
            "reused": self.n_reused_tokens,
            "reply": self.n_reply_tokens,
        }
        if self.thinking is not None:
            fields["thinking"] = "on" if self.thinking else "off"
        if self.n_thought_tokens:
            fields["thought"] = self.n_thought_tokens
        if self.first_token_at is not None:
            fields["ttft"] = round(self.first_token_at - self.started_at, 3)
        if self.tokens_per_second is not None:
            fields["speed"] = round(self.tokens_per_second, 1)
        fields["finish"] = self.outcome
        if self.who:
            fields["user"] = safe(self.who, 64)
        if self.failure is not None:
            fields["error"] = safe(self.failure.message, 300)
        for plan in self.plans[:1]:
            fields["reason"] = plan.reason
        return fields

    def line(self) -> str:
        """:meth:`fields` as ``key=value`` pairs, with units."""
        return " ".join(f"{name}={_told(name, value)}" for name, value in self.fields().items())


_UNITS = {"ttft": ("{:.3f}", "s"), "speed": ("{:.1f}", "tok/s")}


def _told(name: str, value: object) -> str:
    if name in _UNITS:
        form, unit = _UNITS[name]
        return form.format(value) + unit
    return repr(value) if name in ("user", "error", "reason") else str(value)


_MAX_SLOTS, _MAX_TURNS = 512, 50
_LONGEST_TEXT = 60
_CONTEXT = 8
"""Characters shown after a difference."""


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
    """The last turns of each slot; slots that were idle for longest are forgotten first.

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
        """Forget the turns of ``slot``, which contain its private texts."""
        self._turns.pop(slot, None)


def explain(report: PlanReport) -> str:
    """What happened and what to do about it, in sentences for the author of a client."""
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
    """Both texts, up to a little after the place from which they are the same again."""
    n_same = next((i for i, (a, b) in enumerate(zip(kept[::-1], sent[::-1], strict=False)) if a != b), 0)
    n_cut = max(0, n_same - _CONTEXT)
    return _short(kept[: len(kept) - n_cut]), _short(sent[: len(sent) - n_cut])


def _short(text: str) -> str:
    """``text`` on one line, shortened to what a person reads."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}…"
