"""Plain completions: a body becomes a generation request for each of its prompts, and events a body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache.planner import SlotKey
from model.errors import InputError
from model.text.chat import RenderedPrompt
from model.text.deltas import ContentDelta
from server.events import Event, Finished, GenerationRequest, Progress, ReplyFormat, TokenLogprob
from server.http.intake import Arrival
from server.http.schema import parse
from server.http.stream import Frame
from server.openai.bodies import Completion, CompletionChoice, CompletionLogprobs, Usage
from server.openai.decoder import (
    check_stream_options,
    counts_tokens,
    limit_of,
    sampling_of,
    session_in,
    stop_of,
    wants_usage,
)
from server.openai.encoder import OpenAIManners, floored, usage_body, usage_so_far
from server.openai.schema import CompletionRequest
from server.turn.compose import stops_of
from server.turn.reply import plan_body
from server.turn.served import Served, sampling_params

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """The form of a reply, as its request asks for it.

    Attributes:
        n_choices: replies over all prompts; those of one prompt stand together.
        include_usage: whether the stream ends with a chunk of token counts.
        counts_tokens: whether every chunk of the stream has the counts so far.
    """

    id: str
    created: int
    model: str
    n_choices: int
    n_prompts: int
    token_bytes: Callable[[int], bytes]
    has_logprobs: bool = False
    include_usage: bool = False
    counts_tokens: bool = False


@dataclass(frozen=True, slots=True)
class ComposedCompletion:
    """A completion request, ready to run; ``who`` is the end user, for the log."""

    generations: list[GenerationRequest]
    shape: CompletionShape
    stream: bool
    who: str | None


def compose_completion(arrival: Arrival, served: Served) -> ComposedCompletion:
    """Parse, check and tokenise a request, without touching the engine.

    Raises:
        InputError: the request cannot be done; names the field.
        NotFoundError: it asks for another model.
    """
    request = parse(CompletionRequest, arrival.body)
    served.check_name(request.model)
    n = request.n or 1
    if request.best_of not in (None, n):
        raise InputError("'best_of' must equal 'n': replies are not ranked.", param="best_of")
    check_stream_options(request)
    _check_metadata(request)
    prompts = _prompts(request, served)
    return ComposedCompletion(
        generations=[_generation(request, arrival, served, ids, i) for i, ids in enumerate(prompts)],
        shape=CompletionShape(
            id=arrival.id,
            created=arrival.created,
            model=served.name,
            n_choices=len(prompts) * n,
            n_prompts=len(prompts),
            token_bytes=served.tokens.token_bytes,
            has_logprobs=request.logprobs is not None,
            include_usage=wants_usage(request),
            counts_tokens=counts_tokens(request),
        ),
        stream=bool(request.stream),
        who=request.user,
    )


def _check_metadata(request: CompletionRequest) -> None:
    """OpenAI's plain completions have no metadata that could be returned: only ``session_id`` is taken."""
    others = set(request.metadata or ()) - {"session_id"}
    if others:
        param = f"metadata.{min(others)}"
        raise InputError(
            "Of 'metadata', plain completions take 'session_id' only.", param=param, code="unknown_parameter"
        )


def _generation(
    request: CompletionRequest,
    arrival: Arrival,
    served: Served,
    ids: NDArray[np.uint32],
    number: int,
) -> GenerationRequest:
    return GenerationRequest(
        id=f"{arrival.id}-{number}",
        slot=SlotKey.for_session(
            arrival.tenant,
            arrival.session(request.prompt_cache_key, session_in(request.metadata)),
        ),
        prompt=RenderedPrompt(ids=ids),
        max_tokens=served.room_for(
            len(ids), limit_of(request.max_tokens or DEFAULT_MAX_TOKENS), param="prompt"
        ),
        sampling=sampling_params(sampling_of(request), served.sampling, vocab_size=served.info.vocab_size),
        reply=ReplyFormat(
            stops=stops_of(stop_of(request)),
            may_think=False,
            min_tokens=request.min_tokens or 0,
            ignore_eos=bool(request.ignore_eos),
        ),
        n_replies=request.n or 1,
        top_logprobs=request.logprobs,
    )


def _prompts(request: CompletionRequest, served: Served) -> list[NDArray[np.uint32]]:
    """Each prompt's ids, uint32 [n > 0]."""
    prompt = request.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [_ids(prompt, served, "prompt")]
    return [_ids(part, served, f"prompt[{i}]") for i, part in enumerate(prompt)]


def _ids(prompt: object, served: Served, where: str) -> NDArray[np.uint32]:
    if isinstance(prompt, str):
        ids = served.encode(prompt, param=where)
    else:
        ids = np.array(prompt, dtype=np.int64)
        if ids.max() >= served.info.vocab_size:
            raise InputError(
                f"'{where}' holds token {ids.max()}; the vocabulary ends at {served.info.vocab_size - 1}.",
                param=where,
                code="invalid_value",
            )
    if len(ids) == 0:
        raise InputError(f"'{where}' has no tokens.", param=where, code="invalid_value")
    return ids.astype(np.uint32)


class CompletionEncoder(OpenAIManners):
    """Encodes the replies of one request."""

    def __init__(self, shape: CompletionShape) -> None:
        super().__init__(shape.n_choices)
        self._shape = shape
        self._n_chars = [0] * shape.n_choices
        self._logprobs = [_no_logprobs() for _ in range(shape.n_choices)]

    def frames(self, event: Event) -> Iterator[Frame]:
        """Add ``event`` to the replies; the frames that it makes."""
        self.replies.take_in(event)
        match event:
            case Progress():
                if event.deltas or event.logprobs:
                    yield Frame(self._grow(event))
            case Finished():
                yield from map(Frame, self._endings(event))

    def body(self) -> Completion:
        """The whole body, after the last event."""
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
        """The entries of ``event``; they are added to those of the whole reply too."""
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
        if usage is None and shape.counts_tokens:
            usage = usage_so_far(self.replies)
        if usage is not None or shape.include_usage:
            body["usage"] = usage
        if with_plan:
            plans = [plan_body(plan) for plan in self.replies.plans]
            body["crossturn"] = plans[0] if shape.n_prompts == 1 else plans
        return body


def _no_logprobs() -> CompletionLogprobs:
    return CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
