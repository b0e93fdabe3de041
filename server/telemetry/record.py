"""What one request came to: its line in the log, and the moments that metrics and traces are made of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cache.planner import SlotKey
from server.events import Event, Failed, Finished, Planned, PlanReport, Progress
from server.telemetry.log import safe

requests_log = logging.getLogger("crossturn.requests")


@dataclass
class RequestRecord:
    """One request's line in the making.

    Attributes:
        n_written: tokens of each reply, by its index.

    Args:
        id: the request's id, as the client sees it too.
        clock: seconds, monotonic.
        on_end: called with the record when the request has ended.
        who: ``user`` or ``safety_identifier`` of the request, if it had one.
        slot: whose memory the request used.
        trace_parent: the header ``traceparent`` of the request.
        started_at, planned_at, first_token_at, ended_at: by the clock; None where it did not come to that.
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
        """Add what only the parsed and rendered request tells."""
        self.who, self.thinking = who, thinking

    def observe(self, event: Event) -> None:
        """Take note of ``event`` as it passes by."""
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
        """How it ended: the finish reasons, or the kind of failure."""
        if self.failure is not None:
            return self.failure.kind
        return ",".join(sorted({reply.reason for reply in self.finished})) or "cancelled"

    def close(self) -> None:
        """Log the line; called once, when the request has ended."""
        self.ended_at = self.clock()
        self.on_end(self)
        level = logging.WARNING if self.failure and self.failure.kind != "cancelled" else logging.INFO
        requests_log.log(level, "%s", self.line(), extra={"fields": self.fields()})

    @property
    def tokens_per_second(self) -> float | None:
        """Of all replies together, behind their first token."""
        if self.first_token_at is None:
            return None
        decoded_s = (self.ended_at or self.clock()) - self.first_token_at
        return (self.n_reply_tokens - 1) / decoded_s if decoded_s > 0 and self.n_reply_tokens > 1 else None

    def fields(self) -> dict[str, Any]:
        """What is known, by name; the plan's sentence comes last."""
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
