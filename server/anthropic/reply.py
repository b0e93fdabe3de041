"""Encodes the events of a reply: as one message, or as the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from model.text.deltas import Delta
from server.anthropic.blocks import BlockWriter
from server.anthropic.errors import error_body
from server.anthropic.schema.replies import (
    Ending,
    MessageBody,
    MessageDelta,
    MessageStart,
    MessageStop,
    OutputDetails,
    Ping,
    StopReason,
    Usage,
)
from server.events import Event, Finished, Planned, PlanReport, Progress
from server.http.stream import Frame
from server.turn.reply import Replies, plan_body


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """The form of a reply, as its request asks for it.

    Attributes:
        shows_thoughts: whether thoughts are sent, and not only their signatures.
        stored_end: the end, in tokens, of what the client asks to be cached; 0 if it does not ask.
        is_clamped: whether the context leaves less room for the reply than the client asks for.
    """

    id: str
    model: str
    shows_thoughts: bool = True
    stored_end: int = 0
    is_clamped: bool = False


class MessageEncoder:
    """Encodes the reply of one request."""

    keep_alive = Frame(Ping(type="ping"), "ping").encode()
    last = b""

    def __init__(self, shape: MessageShape) -> None:
        self._shape = shape
        self._blocks = BlockWriter(shows_thoughts=shape.shows_thoughts)
        self.replies = Replies()

    def frames(self, event: Event) -> Iterator[Frame]:
        """Add ``event`` to the reply; the stream events that it makes."""
        self.replies.take_in(event)
        match event:
            case Planned():
                yield _frame(self._start())
            case Progress():
                yield from self._growth(event.deltas)
            case Finished():
                for block_event in self._blocks.finish():
                    yield _frame(block_event)
                yield _frame(self._end(event))
                yield _frame(MessageStop(type="message_stop"))

    def failure(self, error: Exception) -> Iterator[Frame]:
        """The event that ends a failed stream."""
        yield Frame(error_body(error, self._shape.id), "error")

    def body(self) -> MessageBody:
        """The whole message, after the last event."""
        (end,) = self.replies.ends
        ending = self._ending(end)
        return MessageBody(
            id=self._shape.id,
            type="message",
            role="assistant",
            model=self._shape.model,
            content=self._blocks.blocks,
            stop_reason=ending["stop_reason"],
            stop_sequence=ending["stop_sequence"],
            usage=self._usage(end),
            crossturn=plan_body(self._plan),
        )

    @property
    def _plan(self) -> PlanReport:
        return self.replies.plans[0]

    def _start(self) -> MessageStart:
        plan = plan_body(self._plan)
        message = MessageBody(
            id=self._shape.id,
            type="message",
            role="assistant",
            model=self._shape.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(None),
            crossturn=plan,
        )
        return MessageStart(type="message_start", message=message, crossturn=plan)

    def _growth(self, deltas: tuple[Delta, ...]) -> Iterator[Frame]:
        for delta in deltas:
            for block_event in self._blocks.push(delta):
                yield _frame(block_event)

    def _end(self, end: Finished) -> MessageDelta:
        return MessageDelta(
            type="message_delta",
            delta=self._ending(end),
            usage=self._usage(end),
            crossturn=plan_body(self._plan),
        )

    def _ending(self, end: Finished) -> Ending:
        return Ending(stop_reason=self._stop_reason(end), stop_sequence=end.stop)

    def _stop_reason(self, end: Finished) -> StopReason:
        match end.reason:
            case "tool_calls":
                return "tool_use"
            case "length":
                return "model_context_window_exceeded" if self._shape.is_clamped else "max_tokens"
            case "stop":
                return "end_turn" if end.stop is None else "stop_sequence"

    def _usage(self, end: Finished | None) -> Usage:
        """New tokens of the prompt count as written to the cache up to where the client asks for it. All of
        them are kept, but a client that does not ask expects no cache to be reported."""
        plan = self._plan
        n_stored = max(0, self._shape.stored_end - plan.reused_tokens)
        usage = Usage(
            input_tokens=plan.prompt_tokens - plan.reused_tokens - n_stored,
            cache_creation_input_tokens=n_stored,
            cache_read_input_tokens=plan.reused_tokens,
            output_tokens=0 if end is None else end.n_tokens,
        )
        if end is not None:
            usage["output_tokens_details"] = OutputDetails(thinking_tokens=end.n_reasoning_tokens)
        return usage


def _frame(event: Mapping[str, Any]) -> Frame:
    return Frame(event, event["type"])
