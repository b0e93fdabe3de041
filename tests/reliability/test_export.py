"""Traces as they leave: to an OTLP collector's stand-in, which reads them with the package's own types."""

from __future__ import annotations

import gzip
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.fakes.process import serving


class Collector(HTTPServer):
    """Takes what is exported."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.exports: list[tuple[str, ExportTraceServiceRequest]] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Collector)
        self.server.exports.append((self.path, ExportTraceServiceRequest.FromString(body)))
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_a_request_arrives_at_the_collector_with_its_phases_and_figures(tmp_path: Path) -> None:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_SERVICE_NAME": "crossturn",
        }
        with serving(tmp_path / "log", "--otel", environment=environment) as server:
            body = server.ask([{"role": "user", "content": "Hello!"}], "traced")
            assert server.end(signal.SIGTERM) == 0  # what is left is sent at the end
        collector.shutdown()
        thread.join()
    assert {path for path, _ in collector.exports} == {"/v1/traces"}
    resources = [group for _, export in collector.exports for group in export.resource_spans]
    names = {
        a.value.string_value
        for group in resources
        for a in group.resource.attributes
        if a.key == "service.name"
    }
    assert names == {"crossturn"}
    spans = {span.name: span for group in resources for scope in group.scope_spans for span in scope.spans}
    assert set(spans) == {"generate", "queue", "prefill", "decode"}
    whole = spans.pop("generate")
    told = {attribute.key: attribute.value for attribute in whole.attributes}
    assert told["crossturn.id"].string_value == body["id"]
    for span in spans.values():
        assert span.parent_span_id == whole.span_id
        assert whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    assert "Hello!" not in str(collector.exports)
