"""Composes a plain completion request: one generation for each of its prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.chat import RenderedPrompt
from model.errors import InputError

from .completion_reply import CompletionShape
from .events import GenerationRequest, ReplyFormat
from .run import Emit
from .sampling_fields import sampling_of, stops_of
from .schema_completions import CompletionRequest
from .served import Served
from .session import slot_of

DEFAULT_MAX_TOKENS = 16
"""As OpenAI has it for this endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedCompletion:
    """A completion request, ready to run; ``who`` is the end user that it names, for the log."""

    generations: list[GenerationRequest]
    shape: CompletionShape
    stream: bool
    who: str | None


def compose_completion(
    request: CompletionRequest,
    *,
    request_id: str,
    created: int,
    served: Served,
    headers: Mapping[str, str],
    tenant: str | None,
    emitter: Callable[[int], Emit],
) -> ComposedCompletion:
    """Check and tokenise ``request``.

    Args:
        emitter: makes the ``emit`` of the generation whose replies are numbered from its argument.

    Raises:
        InputError: the request cannot be done; names the field.
        NotFoundError: it asks for another model.
    """
    served.check_name(request.model)
    n = request.n or 1
    if request.best_of not in (None, n):
        raise InputError("'best_of' must equal 'n': replies are not ranked.", param="best_of")
    if request.stream_options is not None and not request.stream:
        raise InputError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    sampling = sampling_of(request, served.sampling, vocab_size=served.info.vocab_size)
    generations = [
        GenerationRequest(
            id=f"{request_id}-{i}",
            slot=slot_of(request, headers, tenant),
            tenant=tenant,
            prompt=RenderedPrompt(ids=ids),
            max_tokens=served.room_for(len(ids), request.max_tokens or DEFAULT_MAX_TOKENS, param="prompt"),
            emit=emitter(i * n),
            sampling=sampling,
            reply=ReplyFormat(stops=stops_of(request), may_think=False),
            n_replies=n,
            top_logprobs=request.logprobs,
        )
        for i, ids in enumerate(_prompts(request, served))
    ]
    shape = CompletionShape(
        id=request_id,
        created=created,
        model=served.name,
        n_choices=len(generations) * n,
        n_prompts=len(generations),
        token_bytes=served.tokens.token_bytes,
        has_logprobs=request.logprobs is not None,
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
    )
    return ComposedCompletion(
        generations=generations, shape=shape, stream=bool(request.stream), who=request.user
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
