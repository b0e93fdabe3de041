"""The output items of a reply: each opens, grows and closes by events of its own.

The events have no sequence numbers yet; :class:`server.responses.encoder.ResponseEncoder` adds them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from server.responses.kept.records import made_id
from server.responses.schema.replies import EventBody, ItemBody

ItemStatus = Literal["in_progress", "completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class Place:
    """The response of an item, and its index there."""

    response_id: str
    index: int


class OutputItem(ABC):
    """One item, which is opened first, then grows, and is closed last.

    Args:
        prefix: of its id.
        place: its response, and its index there.
    """

    def __init__(self, prefix: str, place: Place) -> None:
        self.id = made_id(prefix, place.response_id, place.index)
        self.index = place.index

    @abstractmethod
    def body(self, status: ItemStatus) -> ItemBody:
        """The item so far."""

    def open(self) -> Iterator[EventBody]:
        """The events that begin it."""
        item = self.body("in_progress")
        yield {"type": "response.output_item.added", "output_index": self.index, "item": item}

    def close(self, status: ItemStatus) -> Iterator[EventBody]:
        """The events that end it."""
        item = self.body(status)
        yield {"type": "response.output_item.done", "output_index": self.index, "item": item}

    def _event(self, kind: str, **fields: Any) -> EventBody:
        return {"type": kind, "item_id": self.id, "output_index": self.index, **fields}


class Message(OutputItem):
    """A message of the model."""

    def __init__(self, place: Place) -> None:
        super().__init__("msg", place)
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._is_open = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def body(self, status: ItemStatus) -> ItemBody:
        content = [self._part()] if self._is_open else []
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def open(self) -> Iterator[EventBody]:
        yield from super().open()
        self._is_open = True
        yield self._event("response.content_part.added", content_index=0, part=self._part())

    def grow(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[EventBody]:
        self._texts.append(text)
        self._logprobs += logprobs
        yield self._event(
            "response.output_text.delta", content_index=0, delta=text, logprobs=_without_bytes(logprobs)
        )

    def close(self, status: ItemStatus) -> Iterator[EventBody]:
        yield self._event(
            "response.output_text.done",
            content_index=0,
            text=self.text,
            logprobs=_without_bytes(self._logprobs),
        )
        yield self._event("response.content_part.done", content_index=0, part=self._part())
        yield from super().close(status)

    def _part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }


class Thought(OutputItem):
    """A thought of the model, sent as a summary if one is wanted, and otherwise as it is.

    Args:
        seal: makes the encrypted content; None if it is not wanted.
    """

    def __init__(self, place: Place, *, as_summary: bool, seal: Callable[[str], str] | None) -> None:
        super().__init__("rs", place)
        self._texts: list[str] = []
        self._as_summary = as_summary
        self._seal = seal
        self._is_closed = False
        kind = "summary" if as_summary else "content"
        self._place = {f"{kind}_index": 0}
        self._part_event = "response.reasoning_summary_part" if as_summary else "response.content_part"
        self._text_event = "response.reasoning_summary_text" if as_summary else "response.reasoning_text"

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def body(self, status: ItemStatus) -> ItemBody:
        text = self.text
        body: ItemBody = {"id": self.id, "type": "reasoning", "status": status, "summary": []}
        if text:
            if self._as_summary:
                body["summary"] = [{"type": "summary_text", "text": text}]
            body["content"] = [{"type": "reasoning_text", "text": text}]
        if self._is_closed and self._seal is not None:
            body["encrypted_content"] = self._seal(text)
        return body

    def open(self) -> Iterator[EventBody]:
        yield from super().open()
        yield self._event(f"{self._part_event}.added", **self._place, part=self._part(""))

    def grow(self, text: str) -> Iterator[EventBody]:
        self._texts.append(text)
        yield self._event(f"{self._text_event}.delta", **self._place, delta=text)

    def close(self, status: ItemStatus) -> Iterator[EventBody]:
        self._is_closed = True
        yield self._event(f"{self._text_event}.done", **self._place, text=self.text)
        yield self._event(f"{self._part_event}.done", **self._place, part=self._part(self.text))
        yield from super().close(status)

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "summary_text" if self._as_summary else "reasoning_text", "text": text}


def _without_bytes(logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Log probabilities as events have them."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [
                {"token": other["token"], "logprob": other["logprob"]} for other in entry["top_logprobs"]
            ],
        }
        for entry in logprobs
    ]
