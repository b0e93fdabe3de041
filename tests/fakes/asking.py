"""Asks a running server as a client would."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.live_server import Live

SYSTEM = {"role": "system", "content": "You answer in one short sentence."}
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def ask(server: Live, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A whole reply."""
    response = server.chat(messages=list(messages), **{"max_tokens": 24, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def stream(server: Live, *messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed reply."""
    response = server.chat(messages=list(messages), stream=True, **{"max_tokens": 24, **fields})
    assert response.status_code == 200, response.text
    frames = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert frames.pop() == "[DONE]"
    return [json.loads(frame) for frame in frames]


def joined(chunks: list[dict[str, Any]], field: str) -> str:
    return "".join(choice["delta"].get(field) or "" for chunk in chunks for choice in chunk["choices"])


def message_of(body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = body["choices"][0]["message"]
    return message
