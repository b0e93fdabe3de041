"""Composes a plain completion request: one generation for each of its prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache.planner import SlotKey
from model.errors import InputError
from model.text.chat import RenderedPrompt
from server.events import GenerationRequest, ReplyFormat
from server.http.arrival import Arrival, session_of
from server.http.schema import parse
from server.openai.chat_checks import check_stream_options
from server.openai.chat_request import sampling_of, stop_of
from server.openai.completion_reply import CompletionShape
from server.openai.completion_schema import CompletionRequest
from server.turn.compose import stops_of
from server.turn.sampling import sampling_params
from server.turn.served import Served

DEFAULT_MAX_TOKENS = 16
"""As OpenAI has it for this endpoint."""


@dataclass(frozen=True, slots=True)
class ComposedCompletion:
    """A completion request, ready to run; ``who`` is the end user that it names, for the log."""

    generations: list[GenerationRequest]
    shape: CompletionShape
    stream: bool
    who: str | None


def compose_completion(arrival: Arrival, served: Served) -> ComposedCompletion:
    """Read, check and tokenise a request. Nothing of the engine is touched.

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
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
        ),
        stream=bool(request.stream),
        who=request.user,
    )


def _check_metadata(request: CompletionRequest) -> None:
    """OpenAI's plain completions have no metadata, so there is nowhere to give it back; it may only name the
    session."""
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
            session_of(arrival, request.prompt_cache_key, (request.metadata or {}).get("session_id")),
        ),
        prompt=RenderedPrompt(ids=ids),
        max_tokens=served.room_for(len(ids), request.max_tokens or DEFAULT_MAX_TOKENS, param="prompt"),
        sampling=sampling_params(sampling_of(request), served.sampling, vocab_size=served.info.vocab_size),
        reply=ReplyFormat(stops=stops_of(stop_of(request)), may_think=False),
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
        ids = served.tokens.encode(prompt)
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
