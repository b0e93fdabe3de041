"""Asks a running server as a client of Anthropic's dialect would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from server.anthropic.request import turn_of
from server.anthropic.schema.requests import MessagesRequest
from server.http.schema import parse
from server.turn.turn import Turn
from tests.fakes.live_server import Live

CLIENTS = Path(__file__).parents[1] / "clients"
ASK: dict[str, Any] = {"model": "demo", "max_tokens": 24, "messages": [{"role": "user", "content": "Hi"}]}


def post(server: Live, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    """Ask with ``fields`` over a minimal request; a field set to ``...`` is left out."""
    body = {name: value for name, value in {**ASK, **fields}.items() if value is not ...}
    return server.http.post("/v1/messages", json=body, headers=headers, timeout=300)


def reply(server: Live, **fields: Any) -> dict[str, Any]:
    """A whole reply."""
    response = post(server, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def stream(server: Live, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed reply."""
    response = post(server, stream=True, **fields)
    assert response.status_code == 200, response.text
    return events_of(response)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events in ``response``."""
    frames = [frame.partition("\ndata: ") for frame in response.text.split("\n\n") if frame]
    events = [json.loads(data) for _, _, data in frames]
    assert [f"event: {event['type']}" for event in events] == [name for name, _, _ in frames]
    return events


def refusal(server: Live, **fields: Any) -> str:
    """The message of a request that must be refused with 400."""
    response = post(server, **fields)
    assert response.status_code == 400, response.text
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    message: str = body["error"]["message"]
    return message


def turn(*, headers: dict[str, str] | None = None, thinks: bool | None = None, **fields: Any) -> Turn:
    """What a request with ``fields`` over a minimal one is decoded into."""
    body = {name: value for name, value in {**ASK, **fields}.items() if value is not ...}
    request = parse(MessagesRequest, json.dumps(body).encode())
    return turn_of(request, id="msg-1", tenant=None, headers=headers or {}, thinks=thinks)


def captured(name: str, **changes: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The body and the telling headers of a request that a client has sent."""
    sent = json.loads((CLIENTS / f"{name}.json").read_text(encoding="utf-8"))
    headers = {
        key: value for key, value in sent["headers"].items() if key.lower().startswith(("x-", "anthropic"))
    }
    return {**sent["body"], **changes}, headers
