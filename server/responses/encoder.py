"""Encodes the events of one reply: as the events of a stream, or as one body."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from model.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.errors import UnavailableError, error_body
from server.events import Event, Finished, Planned, Progress, TokenLogprob
from server.http.stream import COMMENT, Frame
from server.responses.output_calls import Call, call_of
from server.responses.output_items import ItemStatus, Message, OutputItem, Place, Thought
from server.responses.schema.replies import EventBody, ItemBody, ResponseBody, ResponseUsage, Status
from server.responses.toolbox import Toolbox
from server.turn.reply import Replies, plan_body

Logprobs = Callable[[Sequence[TokenLogprob]], list[dict[str, Any]]]
_FLOOR = -9999.0
"""The log probability that OpenAI gives for an impossible token; JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyShape:
    """The form of a response, as its request asks for it.

    Attributes:
        fields: the request's fields as the response returns them, and its id, model and time.
        toolbox: maps the tools to the client's names.
        as_summary: whether thoughts are sent as summaries.
        seal: makes the encrypted content of a thought; None if the client does not want it.
        logprobs: makes the bodies of log probabilities; None if the client does not want them.
        clock: Unix time.
    """

    fields: dict[str, Any]
    toolbox: Toolbox
    as_summary: bool = False
    seal: Callable[[str], str] | None = None
    logprobs: Logprobs | None = None
    clock: Callable[[], float] = time.time


OnEnd = Callable[[ResponseBody], None]


class ResponseEncoder:
    """Encodes the one reply of a request.

    Args:
        shape: the response's form.
        on_end: called with the whole body before the client is told of the end, so that the response can be
            found by a request that continues it.
    """

    keep_alive = COMMENT
    last = b""

    def __init__(self, shape: ReplyShape, on_end: OnEnd = lambda _: None) -> None:
        self.replies = Replies()
        self._shape = shape
        self._on_end = on_end
        self._items: list[OutputItem] = []
        self._done: list[ItemBody] = []
        self._body: ResponseBody | None = None
        self._n_events = 0

    def frames(self, event: Event) -> Iterator[Frame]:
        """Add ``event`` to the replies; the frames that it makes."""
        self.replies.take_in(event)
        return map(self._frame, self._events(event))

    def body(self) -> ResponseBody:
        """The whole response, after the last event."""
        assert self._body is not None
        return self._body

    def failure(self, error: Exception) -> Iterator[Frame]:
        """The unfinished response with the error; before there is a response, the error alone."""
        told = error_body(error)["error"]
        if not self.replies.plans:
            fields = {name: told[name] for name in ("code", "message", "param")}
            yield self._frame({"type": "error", **fields})
            return
        failed = self._response("failed", self._done)
        # OpenAI's vocabulary has only these two codes for faults of a server.
        code = "rate_limit_exceeded" if isinstance(error, UnavailableError) else "server_error"
        failed["error"] = {"code": code, "message": told["message"]}
        yield self._frame({"type": "response.failed", "response": failed})

    def _frame(self, body: EventBody) -> Frame:
        self._n_events += 1
        numbered = {"type": body["type"], "sequence_number": self._n_events - 1, **body}
        return Frame(numbered, event=body["type"])

    def _events(self, event: Event) -> Iterator[EventBody]:
        match event:
            case Planned():
                yield {"type": "response.created", "response": self._response("in_progress", [])}
                yield {"type": "response.in_progress", "response": self._response("in_progress", [])}
            case Progress():
                yield from self._growth(event)
            case Finished():
                yield from self._ending(event)

    def _growth(self, event: Progress) -> Iterator[EventBody]:
        logprobs = [] if self._shape.logprobs is None else self._shape.logprobs(event.logprobs)
        for delta in event.deltas:
            if isinstance(delta, ContentDelta):
                yield from self._say(delta.text, logprobs)
                logprobs = []
            else:
                yield from self._think_or_call(delta)

    def _think_or_call(self, delta: Delta) -> Iterator[EventBody]:
        match delta:
            case ReasoningDelta():
                thought = self._last(Thought)
                if thought is None:
                    shape = self._shape
                    thought = Thought(self._place, as_summary=shape.as_summary, seal=shape.seal)
                    yield from self._open(thought)
                yield from thought.grow(delta.text)
            case ToolCallStart():
                origin = self._shape.toolbox.origin(delta.name)
                yield from self._open(call_of(self._place, delta.id, origin))
            case ToolCallArguments():
                call = self._last(Call)
                assert call is not None, "arguments follow the start of their call"
                yield from call.grow(delta.json_fragment)

    def _say(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[EventBody]:
        message = self._last(Message)
        if message is None:
            message = Message(self._place)
            yield from self._open(message)
        yield from message.grow(text, logprobs)

    @property
    def _place(self) -> Place:
        """The place of the next item."""
        return Place(self._shape.fields["id"], len(self._items))

    def _last(self, kind: type[Any]) -> Any:
        """The unfinished item, if it is of ``kind``."""
        last = self._items[-1] if self._items else None
        return last if isinstance(last, kind) else None

    def _open(self, item: OutputItem) -> Iterator[EventBody]:
        yield from self._close("completed")
        self._items.append(item)
        yield from item.open()

    def _close(self, status: ItemStatus) -> Iterator[EventBody]:
        if len(self._done) < len(self._items):
            yield from self._items[-1].close(status)
            self._done.append(self._items[-1].body(status))

    def _ending(self, event: Finished) -> Iterator[EventBody]:
        is_cut = event.reason == "length"
        if not is_cut and not any(isinstance(item, Message | Call) for item in self._items):
            # Clients take a turn without a message for a fault, so an empty reply becomes an empty message.
            yield from self._open(Message(self._place))
        yield from self._close("incomplete" if is_cut else "completed")
        status: Status = "incomplete" if is_cut else "completed"
        self._body = self._response(status, self._done)
        self._body["usage"] = self._usage(event)
        if is_cut:
            self._body["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self._body["completed_at"] = int(self._shape.clock())
        self._on_end(self._body)
        yield {"type": f"response.{status}", "response": self._body}

    def _response(self, status: Status, output: list[ItemBody]) -> ResponseBody:
        body = {
            **self._shape.fields,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": list(output),
            "usage": None,
        }
        if self.replies.plans:
            body["crossturn"] = plan_body(self.replies.plans[0])
        return cast(ResponseBody, body)

    def _usage(self, end: Finished) -> ResponseUsage:
        plan = self.replies.plans[0]
        n_prompt, n_reused = plan.prompt_tokens, plan.reused_tokens
        return ResponseUsage(
            input_tokens=n_prompt,
            input_tokens_details={"cached_tokens": n_reused, "cache_write_tokens": n_prompt - n_reused},
            output_tokens=end.n_tokens,
            output_tokens_details={"reasoning_tokens": end.n_reasoning_tokens},
            total_tokens=n_prompt + end.n_tokens,
        )


def logprob_bodies(told: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes]) -> list[dict[str, Any]]:
    """The bodies of log probabilities; ``token_bytes`` gives the bytes of a token id."""

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        data = token_bytes(token_id)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": max(logprob, _FLOOR),
            "bytes": list(data),
        }

    return [
        {**token(one.token_id, one.logprob), "top_logprobs": [token(*pair) for pair in one.alternatives]}
        for one in told
    ]
