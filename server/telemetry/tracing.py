"""OpenTelemetry traces: a span for each request, made from its record once it has ended.

Nothing of this is imported, and nothing happens while a request runs, unless the operator asks for traces.
OpenTelemetry's own variables say where they are sent (``OTEL_EXPORTER_OTLP_ENDPOINT`` and others).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from model.errors import CrossturnError
from server.telemetry.record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class TracingError(CrossturnError):
    """Traces are asked for and cannot be made; the message is one line for a terminal."""


class Tracing:
    """Makes spans of requests that have ended.

    Args:
        provider: where spans go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("crossturn")
        self._parent_of = TraceContextTextMapPropagator().extract
        self._kind = SpanKind.SERVER

    @classmethod
    def over_http(cls) -> Tracing:
        """Traces that are sent in batches, from a thread of their own.

        Raises:
            TracingError: the packages of the extra ``otel`` are not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise TracingError("traces need more packages: pip install 'crossturn[otel]'") from None
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def observe(self, record: RequestRecord) -> None:
        """Tell of a request that has just ended."""
        offset_ns = time.time_ns() - round(1e9 * (record.ended_at or record.clock()))

        def at(moment: float) -> int:
            return offset_ns + round(1e9 * moment)

        from opentelemetry.trace import set_span_in_context

        carrier = {} if record.trace_parent is None else {"traceparent": record.trace_parent}
        whole = self._tracer.start_span(
            "generate",
            self._parent_of(carrier),
            self._kind,
            attributes={
                f"crossturn.{name}": value for name, value in record.fields().items() if name != "user"
            },
            start_time=at(record.started_at),
        )
        inside = set_span_in_context(whole)
        for name, start, end in _phases(record):
            self._tracer.start_span(name, inside, start_time=at(start)).end(at(end))
        whole.end(at(record.ended_at or record.clock()))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _phases(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """What the request went through: name, start and end by the record's clock."""
    ended = record.ended_at or record.clock()
    moments = (
        ("queue", record.started_at),
        ("prefill", record.planned_at),
        ("decode", record.first_token_at),
    )
    begun = [(name, at) for name, at in moments if at is not None]
    for (name, start), (_, end) in zip(begun, (*begun[1:], ("", ended)), strict=True):
        yield name, start, end
