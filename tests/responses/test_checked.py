"""What all tests of this dialect rest on: an event that OpenAI would not send there does not pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from server.responses import encoder, output_items
from tests.fakes.live_server import live
from tests.responses.kit import PATH

Events = Iterator[dict[str, Any]]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda usage: {**usage, "surprise": 1}, "surprise"),
        (lambda usage: {name: usage[name] for name in usage if name != "total_tokens"}, "total_tokens"),
    ],
)
def test_a_field_too_many_or_too_few_fails_the_test(
    streams: bool, change: Callable[[Any], Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = encoder.ResponseEncoder._usage
    monkeypatch.setattr(encoder.ResponseEncoder, "_usage", lambda self, end: change(usage(self, end)))
    with pytest.raises(AssertionError, match=found), live() as server:
        server.http.post(PATH, json={"input": "Hi", "stream": streams})


def without_part_done(events: Events) -> Events:
    return (event for event in events if event["type"] != "response.content_part.done")


def with_another_text(events: Events) -> Events:
    for event in events:
        yield {**event, "text": "?"} if event["type"] == "response.output_text.done" else event


def under_another_name(events: Events) -> Events:
    for event in events:
        yield {**event, "type": event["type"].replace("output_text", "said")}


@pytest.mark.parametrize("change", [without_part_done, with_another_text, under_another_name])
def test_an_event_that_is_missing_or_another_fails_the_test(
    change: Callable[[Events], Events], monkeypatch: pytest.MonkeyPatch
) -> None:
    close = output_items.Message.close
    monkeypatch.setattr(output_items.Message, "close", lambda self, status: change(close(self, status)))
    with pytest.raises(AssertionError), live() as server:
        server.http.post(PATH, json={"input": "Hi", "stream": True})
