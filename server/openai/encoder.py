"""Encodes the events of a chat completion: as one body, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.errors import error_body
from server.events import Event, Finished, Planned, Prefilling, Progress, TokenLogprob
from server.http.stream import COMMENT, Frame
from server.openai.bodies import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    CompletionDetails,
    ContentLogprob,
    Finish,
    FunctionBody,
    FunctionDelta,
    Logprobs,
    PromptDetails,
    PromptProgress,
    ReplyDelta,
    ReplyMessage,
    ToolCallBody,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from server.settings import ReasoningField
from server.turn.reply import Replies, Reply, plan_body

_FLOOR = -9999.0
"""The log probability that OpenAI gives for an impossible token; JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReplyShape:
    """The form of a reply, as its request asks for it.

    Attributes:
        n: how many replies are wanted.
        token_bytes: gives the bytes of a token id.
        has_logprobs: whether content tokens come with log probabilities.
        include_usage: whether the stream ends with a chunk of token counts.
        counts_tokens: whether every chunk of the stream has the counts so far.
        service_tier: set when the request has one.
        metadata: the request's, returned with a whole reply.
    """

    id: str
    created: int
    model: str
    n: int
    token_bytes: Callable[[int], bytes]
    reasoning_field: ReasoningField = "reasoning_content"
    has_logprobs: bool = False
    include_usage: bool = False
    counts_tokens: bool = False
    service_tier: Literal["default"] | None = None
    metadata: dict[str, str] | None = None


class OpenAIManners:
    """Base of this dialect's encoders: comments keep a stream alive, and ``[DONE]`` ends it.

    Args:
        n: how many replies are wanted.
    """

    keep_alive = COMMENT
    last = b"data: [DONE]\n\n"

    def __init__(self, n: int) -> None:
        self.replies = Replies(n)

    def failure(self, error: Exception) -> list[Frame]:
        """One frame with the error's body."""
        return [Frame(error_body(error))]


class ChatEncoder(OpenAIManners):
    """Encodes the replies of one request."""

    def __init__(self, shape: ChatReplyShape) -> None:
        super().__init__(shape.n)
        self._shape = shape
        self._logprobs: list[list[ContentLogprob]] = [[] for _ in range(shape.n)]

    def frames(self, event: Event) -> list[Frame]:
        """Add ``event`` to the replies; the frames that it makes. The roles come first, and the plan in the
        first and the last frame."""
        self.replies.take_in(event)
        return [Frame(chunk) for chunk in self._chunks(event)]

    def _chunks(self, event: Event) -> Iterator[ChatCompletionChunk]:
        match event:
            case Planned():
                yield from self._openings()
            case Prefilling():
                yield self._prefilling(event)
            case Progress():
                yield from self._growth(event)
            case Finished():
                yield from self._endings(event)

    def body(self) -> ChatCompletion:
        """The whole body, after the last event."""
        shape, replies = self._shape, self.replies
        body = ChatCompletion(
            id=shape.id,
            object="chat.completion",
            created=shape.created,
            model=shape.model,
            choices=[self._whole_choice(end) for end in replies.ends],
            usage=usage_body(replies),
            crossturn=plan_body(replies.plans[0]),
        )
        if shape.service_tier is not None:
            body["service_tier"] = shape.service_tier
        if shape.metadata is not None:
            body["metadata"] = shape.metadata
        return body

    def _whole_choice(self, end: Finished) -> ChatChoice:
        logprobs = self._logprobs[end.index]
        return ChatChoice(
            index=end.index,
            message=_message(self.replies[end.index], self._shape.reasoning_field),
            logprobs=Logprobs(content=logprobs, refusal=None) if self._shape.has_logprobs else None,
            finish_reason=end.reason,
        )

    def _openings(self) -> Iterator[ChatCompletionChunk]:
        for index in range(self._shape.n):
            chunk = self._chunk([_choice(index, ReplyDelta(role="assistant", content=""))])
            if index == 0:
                chunk["crossturn"] = plan_body(self.replies.plans[0])
            yield chunk

    def _prefilling(self, event: Prefilling) -> ChatCompletionChunk:
        chunk = self._chunk([_choice(0, ReplyDelta())])
        chunk["prompt_progress"] = PromptProgress(
            total=event.n_prompt,
            cache=event.n_reused,
            processed=event.n_done,
            time_ms=round(1000 * event.elapsed_s),
        )
        return chunk

    def _growth(self, event: Progress) -> Iterator[ChatCompletionChunk]:
        wanted = event.logprobs if self._shape.has_logprobs else ()
        self._logprobs[event.index] += (entries := logprob_bodies(wanted, self._shape.token_bytes))
        for kind, group in groupby(event.deltas, type):
            logprobs = None
            if kind is ContentDelta and entries:
                logprobs, entries = Logprobs(content=entries, refusal=None), []
            yield self._chunk([_choice(event.index, _delta(kind, list(group), self._shape), logprobs)])

    def _endings(self, event: Finished) -> Iterator[ChatCompletionChunk]:
        ending = self._chunk([_choice(event.index, ReplyDelta(), finish_reason=event.reason)])
        is_last = self.replies.is_complete
        if is_last and not self._shape.include_usage:
            ending["crossturn"] = plan_body(self.replies.plans[0])
        yield ending
        if is_last and self._shape.include_usage:
            counts = self._chunk([], usage_body(self.replies))
            counts["crossturn"] = plan_body(self.replies.plans[0])
            yield counts

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None = None) -> ChatCompletionChunk:
        shape = self._shape
        chunk = ChatCompletionChunk(
            id=shape.id,
            object="chat.completion.chunk",
            created=shape.created,
            model=shape.model,
            choices=choices,
        )
        if usage is None and shape.counts_tokens:
            usage = usage_so_far(self.replies)
        if shape.include_usage:
            chunk["usage"] = usage
        if shape.service_tier is not None:
            chunk["service_tier"] = shape.service_tier
        return chunk


def _message(reply: Reply, reasoning_field: ReasoningField) -> ReplyMessage:
    message = ReplyMessage(role="assistant", content=reply.content or None, refusal=None)
    if message["content"] is None and not reply.thoughts and not reply.calls:
        message["content"] = ""
    if reply.thoughts:
        if reasoning_field != "reasoning":
            message["reasoning_content"] = reply.thought
        if reasoning_field != "reasoning_content":
            message["reasoning"] = reply.thought
    if reply.calls:
        message["tool_calls"] = [
            ToolCallBody(
                id=call.id,
                type="function",
                function=FunctionBody(name=call.name, arguments=call.arguments),
            )
            for call in reply.calls
        ]
    return message


def _choice(
    index: int,
    delta: ReplyDelta,
    logprobs: Logprobs | None = None,
    finish_reason: Finish | None = None,
) -> ChunkChoice:
    return ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)


def _delta(kind: type[Any], deltas: Sequence[Any], shape: ChatReplyShape) -> ReplyDelta:
    """Consecutive ``deltas`` of one kind as one."""
    if kind is ContentDelta:
        return ReplyDelta(content="".join(delta.text for delta in deltas))
    if kind is ReasoningDelta:
        thought = "".join(delta.text for delta in deltas)
        delta = ReplyDelta()
        if shape.reasoning_field != "reasoning":
            delta["reasoning_content"] = thought
        if shape.reasoning_field != "reasoning_content":
            delta["reasoning"] = thought
        return delta
    return ReplyDelta(tool_calls=[_call_delta(delta) for delta in deltas])


def _call_delta(delta: ToolCallStart | ToolCallArguments) -> ToolCallDelta:
    if isinstance(delta, ToolCallStart):
        return ToolCallDelta(
            index=delta.index,
            id=delta.id,
            type="function",
            function=FunctionDelta(name=delta.name, arguments=""),
        )
    return ToolCallDelta(index=delta.index, function=FunctionDelta(arguments=delta.json_fragment))


def usage_so_far(replies: Replies) -> Usage:
    """The counts while replies are decoded; ``cached_tokens`` are the prompt tokens that were reused."""
    n_prompt = sum(plan.prompt_tokens for plan in replies.plans)
    n_reply = sum(replies.n_tokens)
    return Usage(
        prompt_tokens=n_prompt,
        completion_tokens=n_reply,
        total_tokens=n_prompt + n_reply,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(plan.reused_tokens for plan in replies.plans)),
    )


def usage_body(replies: Replies) -> Usage:
    """The counts when all replies have ended: only then is the number of reasoning tokens known."""
    usage, ends = usage_so_far(replies), replies.ends
    usage["completion_tokens_details"] = CompletionDetails(
        reasoning_tokens=sum(end.n_reasoning_tokens for end in ends),
        accepted_prediction_tokens=sum(end.n_accepted for end in ends),
        rejected_prediction_tokens=sum(end.n_drafted - end.n_accepted for end in ends),
    )
    return usage


def floored(logprob: float) -> float:
    """``logprob``, which may be minus infinity, as a number that JSON has."""
    return max(logprob, _FLOOR)


def logprob_bodies(
    logprobs: Iterable[TokenLogprob], token_bytes: Callable[[int], bytes]
) -> list[ContentLogprob]:
    """The bodies of ``logprobs``; ``token_bytes`` gives the bytes of a token id."""

    def token(token_id: int, logprob: float) -> TopLogprob:
        data = token_bytes(token_id)
        return TopLogprob(token=data.decode("utf-8", "replace"), logprob=floored(logprob), bytes=list(data))

    return [
        ContentLogprob(
            **token(one.token_id, one.logprob), top_logprobs=[token(*pair) for pair in one.alternatives]
        )
        for one in logprobs
    ]
