"""The record of a request, and what is made of it: a line in the log, metrics, and the last turns of its
slot.

Metrics have the names that are usual for such servers, after ``crossturn_``, in Prometheus' text format. A
few of vLLM's own names are there as well: routers and autoscalers look for them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
from cachetools import LRUCache
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache.planner import SlotKey
from cache.shelf import Counters
from cache.store import Store
from server.client import EngineStats
from server.events import Event, Failed, Finished, Planned, PlanReport, Progress
from server.telemetry.log import safe

requests_log = logging.getLogger("crossturn.requests")

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 32_768, 131_072, 524_288)


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


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The store at one moment.

    Attributes:
        n_pinned_bytes: of what runs; the rest of ``n_bytes`` rests and may be let go.
        n_disk_bytes, n_disk_conversations: of the cache directory.
        n_array_bytes: of all arrays of MLX, the weights included.
        n_pooled_bytes: what MLX keeps for the arrays to come.
    """

    n_bytes: int
    n_pinned_bytes: int
    budget_bytes: int
    counters: Counters
    n_disk_bytes: int = 0
    n_disk_conversations: int = 0
    n_array_bytes: int = 0
    n_pooled_bytes: int = 0


def figures_of(store: Store) -> StoreFigures:
    """Runs on the engine thread."""
    return StoreFigures(
        n_bytes=store.n_bytes,
        n_pinned_bytes=store.n_pinned_bytes,
        budget_bytes=store.budget_bytes,
        counters=replace(store.counters),
        n_disk_bytes=store.disk.n_bytes,
        n_disk_conversations=store.disk.n_conversations,
        n_array_bytes=mx.get_active_memory(),
        n_pooled_bytes=mx.get_cache_memory(),
    )


class Metrics:
    """One server's metrics: requests are counted as they end, the rest is read when it is asked for."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"crossturn_{name}", text, registry=registry, buckets=buckets)

        self._requests = Counter(
            "crossturn_requests", "Requests by how they ended.", ["outcome"], registry=registry
        )
        self._plans = Counter(
            "crossturn_plans", "Prompts by what was made of their memory.", ["mode"], registry=registry
        )
        self._replayed = Counter(
            "crossturn_replayed_tokens", "Shared tokens that were read again all the same.", registry=registry
        )
        for mode in ("ExactAppend", "ReplayFromCheckpoint", "FullRefill"):
            self._plans.labels(mode)
        self._queue_s = histogram("queue_time_seconds", "From arrival to the prompt's plan.", _SECONDS)
        self._first_token_s = histogram(
            "time_to_first_token_seconds", "From arrival to first token.", _SECONDS
        )
        self._per_token_s = histogram(
            "time_per_output_token_seconds", "Mean time between a request's tokens.", _TOKEN_SECONDS
        )
        self._whole_s = histogram("request_duration_seconds", "From arrival to the last token.", _SECONDS)
        self._n_prompt = histogram("request_prompt_tokens", "Tokens of a request's prompt.", _TOKENS)
        self._n_reply = histogram("request_generation_tokens", "Tokens of a request's replies.", _TOKENS)

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self._requests.labels(record.outcome).inc()
        for plan in record.plans:
            self._plans.labels(plan.mode).inc()
            self._replayed.inc(max(0, plan.shared_tokens - plan.reused_tokens))
        if record.planned_at is not None:
            self._queue_s.observe(record.planned_at - record.started_at)
            self._n_prompt.observe(record.n_prompt_tokens)
        if record.first_token_at is not None:
            self._first_token_s.observe(record.first_token_at - record.started_at)
            self._n_reply.observe(record.n_reply_tokens)
            if record.tokens_per_second:
                self._per_token_s.observe(1 / record.tokens_per_second)
        if record.ended_at is not None:
            self._whole_s.observe(record.ended_at - record.started_at)

    def text(self, engine: EngineStats, store: StoreFigures) -> bytes:
        """Everything, for a scrape."""
        now = CollectorRegistry()
        now.register(_Snapshot(engine, store))
        return generate_latest(self._registry) + generate_latest(now)


@dataclass(frozen=True, eq=False)
class _Snapshot(Collector):
    """The engine's and the store's own figures as metrics."""

    engine: EngineStats
    store: StoreFigures

    def collect(self) -> Iterator[Metric]:
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, count in self._counters():
            yield CounterMetricFamily(name, text, value=count)
        kinds = GaugeMetricFamily(
            "crossturn_memory_kind_bytes", "Memory that conversations hold, by what they do.", labels=["kind"]
        )
        kinds.add_metric(["running"], self.store.n_pinned_bytes)
        kinds.add_metric(["resting"], max(0, self.store.n_bytes - self.store.n_pinned_bytes))
        yield kinds

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        engine, store = self.engine, self.store
        usage = store.n_bytes / store.budget_bytes if store.budget_bytes else 0.0
        yield "crossturn_up", "1 while the engine's thread runs.", float(engine.is_alive)
        yield "crossturn_requests_running", "Requests that are prefilled or decoded.", engine.n_running
        yield "crossturn_requests_waiting", "Requests in the admission queue.", engine.n_waiting
        yield "crossturn_memory_bytes", "Memory that conversations hold.", store.n_bytes
        yield "crossturn_memory_budget_bytes", "Memory that conversations may hold.", store.budget_bytes
        yield "crossturn_memory_usage_ratio", "Of the budget, what is held; 0 to 1.", min(1.0, usage)
        yield "crossturn_array_bytes", "All arrays of MLX, the weights included.", store.n_array_bytes
        yield "crossturn_pooled_bytes", "What MLX keeps for the arrays to come.", store.n_pooled_bytes
        yield "crossturn_disk_bytes", "What the cache directory holds.", store.n_disk_bytes
        yield "crossturn_disk_conversations", "Conversations in it.", store.n_disk_conversations
        yield "vllm:num_requests_running", "As vLLM names it.", engine.n_running
        yield "vllm:num_requests_waiting", "As vLLM names it.", engine.n_waiting
        yield "vllm:gpu_cache_usage_perc", "As vLLM names it; 0 to 1.", min(1.0, usage)

    def _counters(self) -> Iterator[tuple[str, str, int]]:
        engine, counters = self.engine, self.store.counters
        yield "crossturn_steps", "Forward passes.", engine.n_steps
        yield "crossturn_prompt_tokens", "Tokens of all prompts.", engine.n_prompt_tokens
        yield "crossturn_reused_tokens", "Prompt tokens that were not read again.", engine.n_reused_tokens
        yield "crossturn_prefilled_tokens", "Tokens read, those ahead included.", engine.n_prefilled_tokens
        yield "crossturn_read_ahead_tokens", "Tokens read between turns.", engine.n_read_ahead_tokens
        yield "crossturn_generated_tokens", "Tokens of all replies.", engine.n_generated_tokens
        yield "crossturn_drafted_tokens", "Tokens that were guessed ahead.", engine.n_drafted_tokens
        yield "crossturn_accepted_tokens", "Guessed tokens that came true.", engine.n_accepted_tokens
        yield "crossturn_cache_requests", "Prompts that were planned.", counters.n_requests
        yield "crossturn_cache_hits", "Prompts of which something was reused.", counters.n_hits
        yield "crossturn_cache_forks", "Conversations copied to go on from.", counters.n_forks
        yield "crossturn_evicted_entries", "Conversations dropped for memory.", counters.n_evicted_entries
        yield "crossturn_cut_entries", "Conversations shortened for memory.", counters.n_cut_entries
        yield "crossturn_evicted_checkpoints", "States dropped for memory.", counters.n_evicted_checkpoints
        yield "vllm:gpu_prefix_cache_queries", "As vLLM names it, in tokens.", engine.n_prompt_tokens
        yield "vllm:gpu_prefix_cache_hits", "As vLLM names it, in tokens.", engine.n_reused_tokens
