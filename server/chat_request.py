"""Composes a chat completion request: from its body to what the engine is asked and how to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model.errors import InputError

from .chat_reply import ChatReplyShape
from .events import GenerationRequest, ReplyFormat
from .run import Emit
from .sampling_fields import sampling_of, stops_of
from .schema_chat import ChatRequest
from .schema_messages import AssistantMessage
from .served import Served
from .session import slot_of
from .settings import Settings
from .thinking import thinking_of
from .tool_use import tool_use_of

_OURS = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""Variables of the template that a request sets by its own fields only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedChat:
    """A chat request, ready to run.

    Attributes:
        messages, tools, template_kwargs: what the prompt was rendered from.
        continues: the reply goes on writing the last message.
        who: the end user that the request names, for the log.
    """

    generation: GenerationRequest
    shape: ChatReplyShape
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, object]
    continues: bool
    stream: bool
    who: str | None


def compose_chat(
    request: ChatRequest,
    *,
    request_id: str,
    created: int,
    served: Served,
    settings: Settings,
    headers: Mapping[str, str],
    tenant: str | None,
    emit: Emit,
) -> ComposedChat:
    """Check and render ``request``. Nothing of the engine is touched.

    Raises:
        InputError: the request cannot be done; names the field.
        NotFoundError: it asks for another model.
    """
    served.check_name(request.model)
    check_pairs(request)
    thinking = thinking_of(request, settings.thinking, served.chat.variables)
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    use = tool_use_of(request, served.tokens.controls)
    template_kwargs = {**template_kwargs_of(request), **thinking.template_kwargs}
    continues = continues_final(request)
    prompt = served.chat.render(
        messages,
        tools=use.tools,
        template_kwargs=template_kwargs,
        continue_final=continues,
        max_tokens=served.info.context_length,
    )
    wanted = request.max_completion_tokens or request.max_tokens
    generation = GenerationRequest(
        id=request_id,
        slot=slot_of(request, headers, tenant),
        tenant=tenant,
        prompt=prompt,
        max_tokens=served.room_for(len(prompt.ids), wanted),
        emit=emit,
        sampling=sampling_of(request, served.sampling, vocab_size=served.info.vocab_size),
        reply=ReplyFormat(
            stops=stops_of(request),
            tools=None if use.tools is None else tuple(use.tools),
            grammar=use.grammar,
            max_thought_tokens=thinking.max_tokens,
        ),
        n_replies=request.n or 1,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )
    shape = ChatReplyShape(
        id=request_id,
        created=created,
        model=served.name,
        n=generation.n_replies,
        token_bytes=served.tokens.token_bytes,
        reasoning_field=settings.reasoning_field,
        has_logprobs=bool(request.logprobs),
        in_content=not prompt.opens_thought,
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        service_tier=None if request.service_tier is None else "default",
        metadata=request.metadata,
    )
    return ComposedChat(
        generation=generation,
        shape=shape,
        messages=messages,
        tools=use.tools,
        template_kwargs=template_kwargs,
        continues=continues,
        stream=bool(request.stream),
        who=request.safety_identifier or request.user,
    )


def check_pairs(request: ChatRequest) -> None:
    """Refuse fields that make no sense together.

    Raises:
        InputError: names the field that is one too many.
    """
    if request.stream_options is not None and not request.stream:
        raise InputError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if request.top_logprobs is not None and not request.logprobs:
        raise InputError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    wanted = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(wanted) > 1:
        raise InputError(
            "'max_tokens' and 'max_completion_tokens' differ; send one of them.", param="max_tokens"
        )
    overridden = [name for name in _OURS if name in (request.chat_template_kwargs or {})]
    if overridden:
        raise InputError(
            f"'chat_template_kwargs' may not set '{overridden[0]}'.",
            param=f"chat_template_kwargs.{overridden[0]}",
        )


def template_kwargs_of(request: ChatRequest) -> dict[str, object]:
    """What the request tells its template beyond the fields of the API; null is absent."""
    kwargs = request.chat_template_kwargs or {}
    return {name: value for name, value in kwargs.items() if value is not None}


def continues_final(request: ChatRequest) -> bool:
    """Whether the reply goes on writing the last message, which then is the assistant's.

    Raises:
        InputError: the last message cannot be continued, or it is the assistant's and must not be.
    """
    last = request.messages[-1]
    where = f"messages[{len(request.messages) - 1}]"
    asked = _asked_to_continue(request)
    if not isinstance(last, AssistantMessage):
        if asked:
            raise InputError("Only an assistant message can be continued.", param=where)
        return False
    if asked is False:
        raise InputError(
            "The last message is the assistant's and is not to be continued: there is nothing to answer.",
            param=where,
        )
    if last.tool_calls:
        raise InputError("The last message calls tools; send their results.", param=where)
    return True


def _asked_to_continue(request: ChatRequest) -> bool | None:
    last = request.messages[-1]
    if request.continue_final_message and request.add_generation_prompt:
        raise InputError(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            param="add_generation_prompt",
        )
    if request.continue_final_message is not None:
        return request.continue_final_message
    if isinstance(last, AssistantMessage) and last.prefix is not None:
        return last.prefix
    if request.add_generation_prompt is not None:
        return not request.add_generation_prompt
    return None
