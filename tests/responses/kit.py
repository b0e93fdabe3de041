"""Asks a server in this dialect."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.fakes.live_server import Live, error_of

PATH = "/v1/responses"


def post(server: Live, body: dict[str, Any], **headers: str) -> httpx.Response:
    """``body`` with the model's name."""
    return server.http.post(PATH, json={"model": "demo", **body}, headers=headers)


def respond(server: Live, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """A whole response."""
    response = post(server, body, **headers)
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


def stream(server: Live, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a streamed response."""
    response = post(server, {**body, "stream": True})
    assert response.status_code == 200, response.text
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def refusal(server: Live, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    """The error of a request that must be refused."""
    response = post(server, body)
    assert response.status_code == status, response.text
    return error_of(response)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The events' types, deltas in a row as one."""
    names = [event["type"].removeprefix("response.") for event in events]
    pairs = zip([None, *names], names, strict=False)
    return [name for before, name in pairs if name != before or not name.endswith("delta")]
