"""Counts what happens, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache.shelf import Counters
from cache.store import Store
from server.client import EngineStats
from server.log import RequestRecord

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The store at one moment."""

    n_bytes: int
    budget_bytes: int
    counters: Counters


def figures_of(store: Store) -> StoreFigures:
    """Runs on the engine thread."""
    return StoreFigures(store.n_bytes, store.budget_bytes, replace(store.counters))


class Metrics:
    """One server's metrics: requests are counted as they end, the rest is read when it is asked for."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "crossturn_requests", "Requests by how they ended.", ["outcome"], registry=self._registry
        )
        self._first_token_s = Histogram(
            "crossturn_time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            registry=self._registry,
            buckets=_TTFT_BUCKETS_S,
        )

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self._requests.labels(record.outcome).inc()
        if record.first_token_at is not None:
            self._first_token_s.observe(record.first_token_at - record.started_at)

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
        engine, store = self.engine, self.store
        gauges = (
            ("requests_running", "Requests that are being read or answered.", engine.n_running),
            ("requests_waiting", "Requests in the admission queue.", engine.n_waiting),
            ("memory_bytes", "Memory that conversations hold.", store.n_bytes),
            ("memory_budget_bytes", "Memory that conversations may hold.", store.budget_bytes),
        )
        counters = (
            ("prompt_tokens", "Tokens of all prompts.", engine.n_prompt_tokens),
            ("reused_tokens", "Prompt tokens that were not read again.", engine.n_reused_tokens),
            ("prefilled_tokens", "Tokens read, those read ahead included.", engine.n_prefilled_tokens),
            ("read_ahead_tokens", "Tokens read between turns.", engine.n_read_ahead_tokens),
            ("generated_tokens", "Tokens of all replies.", engine.n_generated_tokens),
            ("cache_requests", "Prompts that were planned.", store.counters.n_requests),
            ("cache_hits", "Prompts of which something was reused.", store.counters.n_hits),
            ("cache_forks", "Conversations that were copied to go on from.", store.counters.n_forks),
            ("evicted_entries", "Conversations dropped for memory.", store.counters.n_evicted_entries),
            ("evicted_checkpoints", "States dropped for memory.", store.counters.n_evicted_checkpoints),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"crossturn_{name}", text, value=value)
        for name, text, value in counters:
            yield CounterMetricFamily(f"crossturn_{name}", text, value=value)
