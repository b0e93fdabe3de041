"""What an operator is told: the log, metrics, traces, readiness, and to whom figures are shown."""

from __future__ import annotations

import io
import json
import logging
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from cache.shelf import Counters
from server.client import EngineStats
from server.events import Failed
from server.settings import Settings
from server.telemetry.log import JsonFormatter, LineFormatter, current_request, safe
from server.telemetry.record import Metrics, RequestRecord, StoreFigures
from server.telemetry.tracing import Tracing
from tests.fakes.fake_engine import FakeEngine, planned, replies, says
from tests.fakes.live_server import ASK, Live, error_of, live

EVIL = "a\r\nINFO forged \x1b[31mred\u202egnol " + "x" * 10_000
STATS = EngineStats(n_steps=7, n_running=2, n_waiting=3, n_prompt_tokens=100, n_reused_tokens=40)
STORE = StoreFigures(
    n_bytes=300, n_pinned_bytes=100, budget_bytes=1200, counters=Counters(n_evicted_entries=5), n_disk_bytes=9
)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What crossturn's log writes for people."""
    yield from _logged(LineFormatter())


@pytest.fixture
def objects() -> Iterator[io.StringIO]:
    """What it writes for machines."""
    yield from _logged(JsonFormatter())


def _logged(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger("crossturn")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(before)


def hostile_requests(server: Live) -> None:
    """Requests that say :data:`EVIL` wherever something of theirs may be logged."""
    server.chat(user=EVIL)
    server.chat(model=EVIL)
    server.chat(messages=[{"role": EVIL, "content": ""}])
    server.chat(**{EVIL: 1})
    server.http.get("/" + "y" * 9000 + "%0d%0aINFO%20forged%1b[31m")


def test_x10_what_a_client_says_stays_inside_its_line(lines: io.StringIO) -> None:
    with live() as server:
        hostile_requests(server)
    written = lines.getvalue().splitlines()
    assert len(written) == 5
    assert all(line.split()[1] in ("INFO", "WARNING") for line in written)
    assert all(len(line) < 1000 for line in written)
    assert "\x1b" not in lines.getvalue()
    assert "\u202e" not in lines.getvalue()


def test_x10_what_a_client_says_is_not_told_back_at_length() -> None:
    with live() as server:
        answers = [
            server.chat(model=EVIL),
            server.chat(messages=[{"role": EVIL, "content": ""}]),
            server.chat(**{EVIL: 1}),
            server.http.get("/" + "y" * 9000),
        ]
    assert all(len(answer.content) < 1000 for answer in answers)


def test_lines_for_machines_are_objects_with_the_requests_id(objects: io.StringIO) -> None:
    with live() as server:
        answer = server.chat(user="anna").json()
        server.chat(n=0)
        refused = server.chat(model="other")
    told = [json.loads(line) for line in objects.getvalue().splitlines()]
    assert [line["level"] for line in told] == ["info"] * 3
    ended = told[0]
    assert (ended["id"], ended["request"]) == (answer["id"], answer["id"])
    assert {"slot", "mode", "prompt", "reused", "reply", "finish", "user", "reason", "ttft"} <= set(ended)
    assert told[2]["request"] == refused.headers["x-request-id"]
    assert all(line["time"].endswith("Z") for line in told)


def test_a_fault_in_the_log_carries_its_request_and_its_traceback(objects: io.StringIO) -> None:
    token = current_request.set("chatcmpl-1")
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("crossturn.test").exception("fault %s", "x\ny")
    current_request.reset(token)
    (told,) = [json.loads(line) for line in objects.getvalue().splitlines()]
    assert (told["message"], told["request"]) == ("fault x\\ny", "chatcmpl-1")
    assert "ValueError" in told["exception"]


@pytest.mark.parametrize(
    ("text", "told"),
    [("plain", "plain"), ("é 你", "é 你"), ("a\nb", "a\\nb"), ("\x1b[0m", "\\x1b[0m"), ("\u2028", "\\u2028")],
)
def test_text_in_a_line_is_spelled_out(text: str, told: str) -> None:
    assert safe(text) == told


def families(text: bytes) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def sample(text: bytes, name: str, **labels: str) -> float:
    """The value of one series."""
    found = [
        sample.value
        for family in families(text).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, found)
    return found[0]


def test_metrics_count_requests_plans_times_and_memory() -> None:
    moments = iter([0.0, 1.0, 2.0, 6.0])
    metrics = Metrics()
    record = RequestRecord("r", lambda: next(moments), metrics.observe)
    script = says("a", "b", "c", "d")
    with live(FakeEngine(script)) as server:
        server.chat()
        (asked,) = server.engine.requests
    events = list(script(asked))
    record.observe(planned(asked, reused=3, mode="ReplayFromCheckpoint"))
    record.observe(events[1])
    for event in events[2:]:
        record.observe(event)
    record.close()
    text = metrics.text(STATS, STORE)
    n_prompt = len(asked.prompt.ids)
    for name, labels, value in (
        ("crossturn_requests_total", {"outcome": "stop"}, 1),
        ("crossturn_plans_total", {"mode": "ReplayFromCheckpoint"}, 1),
        ("crossturn_plans_total", {"mode": "FullRefill"}, 0),
        ("crossturn_queue_time_seconds_sum", {}, 1),
        ("crossturn_time_to_first_token_seconds_sum", {}, 2),
        ("crossturn_request_duration_seconds_sum", {}, 6),
        ("crossturn_time_per_output_token_seconds_sum", {}, 1),
        ("crossturn_request_prompt_tokens_sum", {}, n_prompt),
        ("crossturn_request_generation_tokens_sum", {}, 5),
        ("crossturn_requests_running", {}, 2),
        ("crossturn_requests_waiting", {}, 3),
        ("crossturn_prompt_tokens_total", {}, 100),
        ("crossturn_memory_usage_ratio", {}, 0.25),
        ("crossturn_memory_kind_bytes", {"kind": "resting"}, 200),
        ("crossturn_memory_kind_bytes", {"kind": "running"}, 100),
        ("crossturn_evicted_entries_total", {}, 5),
        ("crossturn_disk_bytes", {}, 9),
        ("crossturn_up", {}, 1),
        ("vllm:num_requests_waiting", {}, 3),
        ("vllm:gpu_cache_usage_perc", {}, 0.25),
    ):
        assert sample(text, name, **labels) == value, name


def test_a_request_that_fails_early_is_counted_without_times() -> None:
    metrics = Metrics()
    record = RequestRecord("r", iter([0.0, 1.0]).__next__, metrics.observe)
    record.observe(Failed("full", kind="overloaded"))
    record.close()
    text = metrics.text(STATS, STORE)
    assert sample(text, "crossturn_requests_total", outcome="overloaded") == 1
    assert sample(text, "crossturn_time_to_first_token_seconds_count") == 0


@pytest.mark.parametrize("path", ["/metrics", "/v1/stats"])
@pytest.mark.parametrize(
    ("keys", "metrics_key", "given", "status"),
    [
        ((), None, None, 500),  # let in: the fake engine has no store
        (("a",), None, "a", 500),
        (("a",), None, None, 401),
        (("a", "b"), None, "a", 403),
        (("a", "b"), "m", "m", 500),
        (("a", "b"), "m", "a", 401),
        ((), "m", None, 401),
        ((), "m", "m", 500),
    ],
)
def test_x10_what_all_keys_do_together_is_shown_to_none_of_them(
    path: str, keys: tuple[str, ...], metrics_key: str | None, given: str | None, status: int
) -> None:
    known = {"api_keys": keys} if keys else {}
    with live(settings=Settings(**known, metrics_key=metrics_key)) as server:
        headers = {"Authorization": "" if given is None else f"Bearer {given}"}
        response = server.http.get(path, headers=headers)
        assert response.status_code == status
        error_of(response)


def test_a_trace_has_a_span_for_each_phase_under_the_clients_own() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with live() as server:
        server.gateway.tracing = Tracing(provider)
        answer = server.http.post(
            "/v1/chat/completions", json=ASK, headers={"traceparent": f"00-{trace}-{parent}-01"}
        )
        assert answer.status_code == 200
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"generate", "queue", "prefill", "decode"}
    whole = spans["generate"]
    assert f"{whole.context.trace_id:032x}" == trace
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == parent
    assert whole.attributes is not None
    assert whole.attributes["crossturn.id"] == answer.json()["id"]
    inner = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(span.parent and span.parent.span_id == whole.context.span_id for span in inner)
    moments = [whole.start_time, *(span.end_time for span in inner)]
    assert moments == sorted(moments)
    assert whole.end_time == inner[-1].end_time


def test_readiness_ends_before_the_server_does() -> None:
    with live(FakeEngine(replies())) as server:
        assert server.http.get("/ready").json() == {"status": "ready"}
        server.gateway.is_leaving = True
        told = server.http.get("/ready")
        assert (told.status_code, told.json()) == (503, {"status": "leaving"})
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/v1/models").status_code == 200


def test_alerts_and_dashboard_ask_for_metrics_that_there_are() -> None:
    known = {
        sample.name for family in families(Metrics().text(STATS, STORE)).values() for sample in family.samples
    }
    known |= {name.removesuffix("_created") for name in known} | {f"{name}_bucket" for name in known}
    known |= {"crossturn_requests_total"}  # has no series before the first request
    folder = Path(__file__).parents[2] / "packaging" / "monitoring"
    for file in (folder / "alerts.yml", folder / "grafana.json"):
        asked = set(re.findall(r"\bcrossturn_[a-z_]+", file.read_text(encoding="utf-8")))
        assert len(asked) > 5
        assert asked <= known, asked - known


def test_the_dashboard_is_the_one_that_its_script_writes() -> None:
    folder = Path(__file__).parents[2] / "packaging" / "monitoring"
    script = runpy.run_path(str(folder / "dashboard.py"))
    assert json.loads((folder / "grafana.json").read_text(encoding="utf-8")) == script["dashboard"]()
