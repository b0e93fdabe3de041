"""Encodes the events of a plain completion: as one body, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from model.text.deltas import ContentDelta
from server.events import Event, Finished, Progress, TokenLogprob
from server.http.stream import Frame
from server.openai.logprobs import floored
from server.openai.manners import OpenAIManners
from server.openai.reply_schema import Completion, CompletionChoice, CompletionLogprobs, Usage
from server.openai.usage import plan_body, usage_body


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """What the request decides about its reply's form.

    Attributes:
        n_choices: replies over all prompts; those of one prompt stand together.
        include_usage: whether the stream ends with a chunk of token counts.
    """

    id: str
    created: int
    model: str
    n_choices: int
    n_prompts: int
    token_bytes: Callable[[int], bytes]
    has_logprobs: bool = False
    include_usage: bool = False


class CompletionEncoder(OpenAIManners):
    """Encodes one request's replies."""

    def __init__(self, shape: CompletionShape) -> None:
        super().__init__(shape.n_choices)
        self._shape = shape
        self._n_chars = [0] * shape.n_choices
        self._logprobs = [_no_logprobs() for _ in range(shape.n_choices)]

    def frames(self, event: Event) -> Iterator[Frame]:
        """Take in ``event``; the frames that it makes."""
        self.replies.take_in(event)
        match event:
            case Progress():
                if event.deltas or event.logprobs:
                    yield Frame(self._grow(event))
            case Finished():
                yield from map(Frame, self._endings(event))

    def body(self) -> Completion:
        """The whole reply, once every event was taken in."""
        choices = [
            self._choice(end.index, self.replies[end.index].content, self._logprobs[end.index], end)
            for end in self.replies.ends
        ]
        return self._body(choices, usage=usage_body(self.replies), with_plan=True)

    def _grow(self, event: Progress) -> Completion:
        text = "".join(delta.text for delta in event.deltas if isinstance(delta, ContentDelta))
        grown = self._logprobs_of(event)
        self._n_chars[event.index] += len(text)
        return self._body([self._choice(event.index, text, grown, None)])

    def _endings(self, event: Finished) -> Iterator[Completion]:
        is_last = self.replies.is_complete
        with_usage = self._shape.include_usage
        yield self._body(
            [self._choice(event.index, "", _no_logprobs(), event)], with_plan=is_last and not with_usage
        )
        if is_last and with_usage:
            yield self._body([], usage=usage_body(self.replies), with_plan=True)

    def _logprobs_of(self, event: Progress) -> CompletionLogprobs:
        """The entries of ``event``, which are added to the whole reply's too."""
        grown, whole = _no_logprobs(), self._logprobs[event.index]
        offset = self._n_chars[event.index]
        for told in event.logprobs if self._shape.has_logprobs else ():
            token = self._token(told.token_id)
            for entries in (grown, whole):
                entries["tokens"].append(token)
                entries["token_logprobs"].append(floored(told.logprob))
                entries["top_logprobs"].append(self._alternatives(told))
                entries["text_offset"].append(offset)
            offset += len(token)
        return grown

    def _alternatives(self, told: TokenLogprob) -> dict[str, float]:
        pairs = (*told.alternatives, (told.token_id, told.logprob))
        return {self._token(token_id): floored(logprob) for token_id, logprob in pairs}

    def _token(self, token_id: int) -> str:
        return self._shape.token_bytes(token_id).decode("utf-8", "replace")

    def _choice(
        self, index: int, text: str, logprobs: CompletionLogprobs, end: Finished | None
    ) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs if self._shape.has_logprobs else None,
            finish_reason=None if end is None else "length" if end.reason == "length" else "stop",
        )

    def _body(
        self, choices: list[CompletionChoice], *, usage: Usage | None = None, with_plan: bool = False
    ) -> Completion:
        shape = self._shape
        body = Completion(
            id=shape.id,
            object="text_completion",
            created=shape.created,
            model=shape.model,
            choices=choices,
        )
        if usage is not None or shape.include_usage:
            body["usage"] = usage
        if with_plan:
            plans = [plan_body(plan) for plan in self.replies.plans]
            body["crossturn"] = plans[0] if shape.n_prompts == 1 else plans
        return body


def _no_logprobs() -> CompletionLogprobs:
    return CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
