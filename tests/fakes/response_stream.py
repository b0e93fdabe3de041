"""Reads along a streamed response: every event is OpenAI's, and they come in the official order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.openai_types import (
    check_deleted,
    check_event,
    check_input_tokens,
    check_items,
    check_response,
)

PATH = "/v1/responses"
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
TEXTS = {
    "response.output_text": ("text", "content_index"),
    "response.reasoning_text": ("text", "content_index"),
    "response.reasoning_summary_text": ("text", "summary_index"),
    "response.function_call_arguments": ("arguments", None),
    "response.custom_tool_call_input": ("input", None),
}
"""What grows by deltas: the field that its end has whole, and the index that names its part."""
PARTS = ("response.content_part", "response.reasoning_summary_part")


def check_of_response_path(method: str, path: str) -> Callable[[dict[str, Any]], object] | None:
    """How a body of this dialect is checked; None for paths of others."""
    if path != PATH and not path.startswith(f"{PATH}/"):
        return None
    if method == "DELETE":
        return check_deleted
    if path == f"{PATH}/input_tokens":
        return check_input_tokens
    return check_items if path.endswith("/input_items") else check_response


@dataclass
class ResponseStream:
    """One stream as it is sent."""

    n_events: int = 0
    is_over: bool = False
    done: list[dict[str, Any]] = field(default_factory=list)
    item: dict[str, Any] | None = None
    part: str | None = None
    text: str = ""

    def read(self, frames: Sequence[str], *, is_last: bool) -> int:
        """Take in whole frames; how many events there were."""
        events = [frame for frame in frames if not frame.startswith(":")]
        for frame in events:
            head, data = frame.split("\n")
            body = json.loads(data.removeprefix("data: "))
            assert head == f"event: {body['type']}"
            self._read_event(body)
        assert not is_last or self.is_over, "the stream has no end"
        return len(events)

    def _read_event(self, body: dict[str, Any]) -> None:
        check_event(body)
        assert not self.is_over, f"{body['type']} follows the end"
        assert body["sequence_number"] == self.n_events
        self.n_events += 1
        kind = body["type"]
        if kind in TERMINAL:
            self.is_over = True
            if kind not in ("error", "response.failed"):
                assert self.item is None, "an item is left open"
                assert body["response"]["output"] == self.done
        elif self.n_events <= 2:
            assert kind == ("response.created", "response.in_progress")[self.n_events - 1]
        else:
            self._read_item_event(kind, body)

    def _read_item_event(self, kind: str, body: dict[str, Any]) -> None:
        assert body["output_index"] == len(self.done)
        if kind == "response.output_item.added":
            assert self.item is None, "two items are open"
            assert body["item"]["status"] == "in_progress"
            self.item = body["item"]
            return
        assert self.item is not None, "no item is open"
        if kind == "response.output_item.done":
            assert self.part is None, "a part is left open"
            assert body["item"]["id"] == self.item["id"]
            assert body["item"]["status"] in ("completed", "incomplete")
            self.done.append(body["item"])
            self.item, self.text = None, ""
            return
        assert body["item_id"] == self.item["id"]
        name, _, step = kind.rpartition(".")
        if name in PARTS:
            assert (self.part is None) == (step == "added"), f"{kind} at the wrong moment"
            self.part = name if step == "added" else None
            assert step == "added" or body["part"]["text"] == self.text
            return
        whole, index = TEXTS[name]
        assert index is None or (self.part is not None and body[index] == 0)
        if step == "delta":
            assert body["delta"]
            self.text += body["delta"]
        else:
            assert body[whole] == self.text
