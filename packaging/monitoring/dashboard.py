"""Writes the Grafana dashboard beside this file: ``python packaging/monitoring/dashboard.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 8, 8
QUANTILES = (0.5, 0.95)


def rate(metric: str, by: str = "") -> str:
    """A counter's increase a second, over all of an instance's series."""
    labels = ", ".join(("instance", *([by] if by else [])))
    return f'sum by ({labels}) (rate({metric}{{instance=~"$instance"}}[$__rate_interval]))'


def gauge(metric: str) -> str:
    return f'{metric}{{instance=~"$instance"}}'


def quantiles(metric: str) -> list[tuple[str, str]]:
    """Of a histogram."""
    buckets = f'sum by (le) (rate({metric}_bucket{{instance=~"$instance"}}[$__rate_interval]))'
    return [(f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in QUANTILES]


PANELS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("Requests by how they ended", "reqps", [(rate("crossturn_requests_total", "outcome"), "{{outcome}}")]),
    (
        "Running and waiting",
        "short",
        [(gauge("crossturn_requests_running"), "running"), (gauge("crossturn_requests_waiting"), "waiting")],
    ),
    ("Time in the queue", "s", quantiles("crossturn_queue_time_seconds")),
    ("Time to first token", "s", quantiles("crossturn_time_to_first_token_seconds")),
    ("Time per output token", "s", quantiles("crossturn_time_per_output_token_seconds")),
    ("Whole requests", "s", quantiles("crossturn_request_duration_seconds")),
    (
        "Tokens",
        "short",
        [
            (rate(f"crossturn_{name}_tokens_total"), name.replace("_", " "))
            for name in ("prompt", "reused", "prefilled", "read_ahead", "replayed", "generated")
        ],
    ),
    (
        "Share of prompts that was not read again",
        "percentunit",
        [(f"{rate('crossturn_reused_tokens_total')} / {rate('crossturn_prompt_tokens_total')}", "reused")],
    ),
    ("Plans by mode", "reqps", [(rate("crossturn_plans_total", "mode"), "{{mode}}")]),
    (
        "Memory of conversations",
        "bytes",
        [
            (gauge("crossturn_memory_kind_bytes"), "{{kind}}"),
            (gauge("crossturn_memory_budget_bytes"), "budget"),
        ],
    ),
    (
        "Dropped for memory",
        "short",
        [
            (rate("crossturn_evicted_entries_total"), "conversations"),
            (rate("crossturn_cut_entries_total"), "shortened"),
            (rate("crossturn_evicted_checkpoints_total"), "states"),
        ],
    ),
    ("Cache directory", "bytes", [(gauge("crossturn_disk_bytes"), "held")]),
]


def dashboard() -> dict[str, Any]:
    """The whole of it, as Grafana imports it."""
    return {
        "title": "crossturn",
        "uid": "crossturn",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": "label_values(crossturn_requests_running, instance)",
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [panel(i, *described) for i, described in enumerate(PANELS)],
    }


def panel(number: int, title: str, unit: str, targets: list[tuple[str, str]]) -> dict[str, Any]:
    """One chart in a grid of three columns."""
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": number % 3 * WIDTH, "y": number // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend}
            for i, (expression, legend) in enumerate(targets)
        ],
    }


if __name__ == "__main__":
    text = json.dumps(dashboard(), indent=1)
    (Path(__file__).parent / "grafana.json").write_text(f"{text}\n", encoding="utf-8")
