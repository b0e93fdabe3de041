"""Composes a chat completion request: from its body to what the engine is asked and how to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.text.chat import RenderedPrompt
from server.events import GenerationRequest, ReplyFormat
from server.http.arrival import Arrival
from server.http.schema import parse
from server.http.served import Served
from server.openai.chat_checks import check_pairs, continues_final, template_kwargs_of
from server.openai.chat_reply import ChatReplyShape
from server.openai.chat_schema import ChatRequest
from server.openai.sampling_fields import sampling_of, stops_of
from server.openai.session import slot_of
from server.openai.thinking import thinking_of
from server.openai.tool_use import tool_use_of
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt is rendered from.

    Attributes:
        continues: the reply goes on writing the last message.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, object]
    continues: bool


@dataclass(frozen=True, slots=True)
class ComposedChat:
    """A chat request, ready to run; ``who`` is the end user that it names, for the log."""

    conversation: Conversation
    generation: GenerationRequest
    shape: ChatReplyShape
    stream: bool
    who: str | None


def compose_chat(arrival: Arrival, served: Served, settings: Settings) -> ComposedChat:
    """Read, check and render a request. Nothing of the engine is touched.

    Raises:
        InputError: the request cannot be done; names the field.
        NotFoundError: it asks for another model.
    """
    request = parse(ChatRequest, arrival.body)
    served.check_name(request.model)
    check_pairs(request)
    thinking = thinking_of(request, settings.thinking, served.chat.variables)
    use = tool_use_of(request, served.tokens.controls)
    conversation = Conversation(
        messages=[message.model_dump(exclude_none=True) for message in request.messages],
        tools=use.tools,
        template_kwargs={**template_kwargs_of(request), **thinking.template_kwargs},
        continues=continues_final(request),
    )
    prompt = served.chat.render(
        conversation.messages,
        tools=conversation.tools,
        template_kwargs=conversation.template_kwargs,
        continue_final=conversation.continues,
        max_tokens=served.info.context_length,
    )
    reply = ReplyFormat(
        stops=stops_of(request),
        tools=None if use.tools is None else tuple(use.tools),
        grammar=use.grammar,
        max_thought_tokens=thinking.max_tokens,
    )
    return ComposedChat(
        conversation=conversation,
        generation=_generation(request, arrival, served, prompt, reply),
        shape=_shape(request, arrival, served, settings),
        stream=bool(request.stream),
        who=request.safety_identifier or request.user,
    )


def _generation(
    request: ChatRequest,
    arrival: Arrival,
    served: Served,
    prompt: RenderedPrompt,
    reply: ReplyFormat,
) -> GenerationRequest:
    wanted = request.max_completion_tokens or request.max_tokens
    return GenerationRequest(
        id=arrival.id,
        slot=slot_of(request, arrival.headers, arrival.tenant),
        tenant=arrival.tenant,
        prompt=prompt,
        max_tokens=served.room_for(len(prompt.ids), wanted),
        sampling=sampling_of(request, served.sampling, vocab_size=served.info.vocab_size),
        reply=reply,
        n_replies=request.n or 1,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def _shape(request: ChatRequest, arrival: Arrival, served: Served, settings: Settings) -> ChatReplyShape:
    return ChatReplyShape(
        id=arrival.id,
        created=arrival.created,
        model=served.name,
        n=request.n or 1,
        token_bytes=served.tokens.token_bytes,
        reasoning_field=settings.reasoning_field,
        has_logprobs=bool(request.logprobs),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        service_tier=None if request.service_tier is None else "default",
        metadata=request.metadata,
    )
