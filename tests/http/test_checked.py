"""What all tests over HTTP rest on: a reply that is not as OpenAI sends it does not pass unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.openai import completions, encoder
from server.openai.bodies import Usage
from server.openai.encoder import usage_body
from tests.fakes.live_server import live

Change = Callable[[dict[str, Any]], dict[str, Any]]


def unknown(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "surprise": 1}


def missing(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "total_tokens"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("change", "found"), [(unknown, "surprise"), (missing, "total_tokens")])
def test_a_field_too_many_or_too_few_fails_the_test(
    path: str, stream: bool, change: Change, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*arguments: Any) -> Usage:
        return change(dict(usage_body(*arguments)))  # type: ignore[return-value]

    monkeypatch.setattr(encoder, "usage_body", changed)
    monkeypatch.setattr(completions, "usage_body", changed)
    asked: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    )
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    with pytest.raises(AssertionError, match=found), live() as server:
        assert server.http.post(path, json=asked).status_code == 200
