"""What the operator reads: one line for every request, on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from cache.planner import SlotKey
from server.events import Event, Failed, Finished, Planned, PlanReport, Progress

requests_log = logging.getLogger("crossturn.requests")

current_request: ContextVar[str | None] = ContextVar("current_request", default=None)
"""The id of the request that is being served where a line is logged."""


def set_up(level: str) -> None:
    """Send crossturn's log, and what uvicorn has to say beyond its access log, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    for name, name_level in (("crossturn", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(name_level)
        logger.propagate = False


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
    """

    id: str
    clock: Callable[[], float]
    on_end: Callable[[RequestRecord], None]
    who: str | None = None
    slot: SlotKey | None = None
    thinking: bool | None = None
    plans: list[PlanReport] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    n_written: dict[int, int] = field(default_factory=dict)
    failure: Failed | None = None
    started_at: float = field(init=False)
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
        requests_log.log(level, "%s", self.line())

    def line(self) -> str:
        """The line, as ``key=value`` pairs; the plan's sentence comes last."""
        pairs = [f"id={self.id}"]
        for plan in self.plans[:1]:
            pairs += [f"slot={plan.slot}", f"mode={plan.mode}"]
            if plan.parent is not None:
                pairs.append(f"parent={plan.parent}")
        pairs += [
            f"prompt={self.n_prompt_tokens}",
            f"reused={self.n_reused_tokens}",
            f"reply={self.n_reply_tokens}",
        ]
        if self.thinking is not None:
            pairs.append(f"thinking={'on' if self.thinking else 'off'}")
        if self.n_thought_tokens:
            pairs.append(f"thought={self.n_thought_tokens}")
        pairs += self._times()
        pairs.append(f"finish={self.outcome}")
        if self.who:
            pairs.append(f"user={self.who!r}")
        if self.failure is not None:
            pairs.append(f"error={self.failure.message!r}")
        for plan in self.plans[:1]:
            pairs.append(f"reason={plan.reason!r}")
        return " ".join(pairs)

    def _times(self) -> list[str]:
        if self.first_token_at is None:
            return []
        times = [f"ttft={self.first_token_at - self.started_at:.3f}s"]
        decoded_s = (self.ended_at or self.clock()) - self.first_token_at
        if decoded_s > 0 and self.n_reply_tokens > 1:
            times.append(f"speed={(self.n_reply_tokens - 1) / decoded_s:.1f}tok/s")
        return times
