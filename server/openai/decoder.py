"""Decodes the body of a chat completion request into a turn, and into the form of its reply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from model.errors import InputError
from server.http.intake import Arrival
from server.http.schema import parse
from server.openai.encoder import ChatReplyShape
from server.openai.messages import AllowedToolsChoice, AssistantMessage, NamedTool
from server.openai.schema import (
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Reasoning,
    SamplingFields,
)
from server.settings import Settings
from server.turn.compose import ComposedTurn, compose
from server.turn.served import Served
from server.turn.turn import Effort, ResponseFormat, Sampling, Thinking, ToolChoice, Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ComposedChat:
    """A chat request, ready to run, and the form of its reply."""

    turn: ComposedTurn
    shape: ChatReplyShape
    stream: bool


def compose_chat(arrival: Arrival, served: Served, settings: Settings) -> ComposedChat:
    """Parse, check and render a request, without touching the engine.

    Raises:
        InputError: the request cannot be done; names the field.
        NotFoundError: it asks for another model.
    """
    request = parse(ChatRequest, arrival.body)
    return ComposedChat(
        turn=compose(turn_of(request, arrival), served, settings),
        shape=_shape(request, arrival, served, settings),
        stream=bool(request.stream),
    )


def turn_of(request: ChatRequest, arrival: Arrival) -> Turn:
    """What ``request`` asks for.

    Raises:
        InputError: its fields contradict each other.
    """
    check_pairs(request)
    return Turn(
        id=arrival.id,
        tenant=arrival.tenant,
        session=arrival.session(request.prompt_cache_key, session_in(request.metadata)),
        user=request.safety_identifier or request.user,
        model=request.model,
        messages=[message.model_dump(exclude_none=True) for message in request.messages],
        tools=[tool.model_dump(exclude_none=True) for tool in request.tools or ()],
        tool_choice=_tool_choice(request),
        response_format=_response_format(request),
        thinking=_thinking(request),
        sampling=sampling_of(request),
        stop=stop_of(request),
        n=request.n or 1,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        max_tokens=limit_of(request.max_completion_tokens or request.max_tokens),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        prediction=None if request.prediction is None else request.prediction.text,
        tells_prefill=bool(request.stream and request.return_progress),
        continues=continues_of(request),
        chat_template_kwargs=request.chat_template_kwargs or {},
        names=_names(request),
    )


def sampling_of(fields: SamplingFields) -> Sampling:
    """The sampling fields that chat and plain completions share."""
    return Sampling(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        seed=fields.seed,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias={int(token): cast(float, bias) for token, bias in (fields.logit_bias or {}).items()},
    )


def _told(metadata: Mapping[str, object]) -> dict[str, str]:
    """``metadata`` as the reply has it: clients accept only strings there."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}


def session_in(metadata: Mapping[str, object] | None) -> str | None:
    """The session that a request's metadata names."""
    name = (metadata or {}).get("session_id")
    return None if name is None else str(name)


def limit_of(max_tokens: int | None) -> int | None:
    """The token limit of a field; -1 means none."""
    return None if max_tokens == -1 else max_tokens


def wants_usage(fields: SamplingFields) -> bool:
    """Whether the stream ends with a chunk of token counts."""
    return bool(fields.stream_options and fields.stream_options.include_usage)


def counts_tokens(fields: SamplingFields) -> bool:
    """Whether every chunk of the stream has the token counts so far."""
    return wants_usage(fields) and bool(
        fields.stream_options and fields.stream_options.continuous_usage_stats
    )


def stop_of(fields: SamplingFields) -> list[str]:
    """The stop strings."""
    return [fields.stop] if isinstance(fields.stop, str) else fields.stop or []


SCHEMA_NAME = {"response_format.schema": "response_format.json_schema.schema"}


def _names(request: ChatRequest) -> dict[str, str]:
    """This dialect's parameters for the names in a turn's tool choice and for its answer schema."""
    match request.tool_choice:
        case NamedTool():
            return SCHEMA_NAME | {"tool_choice.names[0]": "tool_choice.function.name"}
        case AllowedToolsChoice(allowed_tools=allowed):
            return SCHEMA_NAME | {
                f"tool_choice.names[{i}]": f"tool_choice.allowed_tools.tools[{i}].function.name"
                for i in range(len(allowed.tools))
            }
        case _:
            return SCHEMA_NAME


def _tool_choice(request: ChatRequest) -> ToolChoice:
    is_parallel = request.parallel_tool_calls is not False
    match request.tool_choice:
        case NamedTool(function=function):
            return ToolChoice(mode="required", names=(function.name,), parallel=False)
        case AllowedToolsChoice(allowed_tools=allowed):
            names = tuple(tool.function.name for tool in allowed.tools)
            return ToolChoice(mode=allowed.mode, names=names, parallel=is_parallel)
        case None:
            return ToolChoice(parallel=is_parallel)
        case mode:
            return ToolChoice(mode=mode, parallel=is_parallel)


def _response_format(request: ChatRequest) -> ResponseFormat | None:
    match request.response_format:
        case JsonSchemaFormat(json_schema=wanted):
            return ResponseFormat(
                schema={"type": "object"} if wanted.schema_ is None else wanted.schema_,
                name=wanted.name,
                description=wanted.description,
                strict=wanted.strict,
            )
        case JsonObjectFormat():
            return ResponseFormat(schema={"type": "object"})
        case _:
            return None


def _thinking(request: ChatRequest) -> Thinking:
    """Read ``enable_thinking``, ``reasoning_effort``, ``reasoning`` and their synonyms.

    Raises:
        InputError: the spellings contradict each other.
    """
    asked = request.reasoning or Reasoning()
    effort: Effort | None = _agreed(
        {"reasoning_effort": request.reasoning_effort, "reasoning.effort": asked.effort}
    )
    spellings = {
        "enable_thinking": request.enable_thinking,
        "chat_template_kwargs.enable_thinking": _from_kwargs(request),
        "reasoning.enabled": asked.enabled,
        "reasoning_effort": None if effort is None else effort != "none",
    }
    budget = _agreed({"thinking_budget": request.thinking_budget, "reasoning.max_tokens": asked.max_tokens})
    return Thinking(enabled=_agreed(spellings), effort=effort, budget=budget)


def _agreed(spellings: Mapping[str, T | None]) -> T | None:
    """The value that synonymous fields agree on; None when none of them is set."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(set(given.values())) > 1:
        raise InputError(
            f"These contradict each other: {', '.join(given)}.", param=list(given)[-1], code="invalid_value"
        )
    return next(iter(given.values()), None)


def _from_kwargs(request: ChatRequest) -> bool | None:
    value = (request.chat_template_kwargs or {}).get("enable_thinking")
    if value is None or isinstance(value, bool):
        return value
    raise InputError(
        "'chat_template_kwargs.enable_thinking' must be true or false.",
        param="chat_template_kwargs.enable_thinking",
        code="invalid_type",
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
        include_usage=wants_usage(request),
        counts_tokens=counts_tokens(request),
        service_tier=None if request.service_tier is None else "default",
        metadata=None if request.metadata is None else _told(request.metadata),
    )


def check_stream_options(fields: SamplingFields) -> None:
    """Refuse options of a stream in a request without one.

    Raises:
        InputError: they are set.
    """
    if fields.stream_options is not None and not fields.stream:
        raise InputError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")


def check_pairs(request: ChatRequest) -> None:
    """Refuse fields that contradict each other.

    Raises:
        InputError: names the field that is one too many.
    """
    check_stream_options(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise InputError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    wanted = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(wanted) > 1:
        raise InputError(
            "'max_tokens' and 'max_completion_tokens' differ; send one of them.", param="max_tokens"
        )


def continues_of(request: ChatRequest) -> bool | None:
    """Whether the reply is to continue the last message; None when the request does not say.

    Raises:
        InputError: the fields contradict each other.
    """
    if request.continue_final_message and request.add_generation_prompt:
        raise InputError(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            param="add_generation_prompt",
        )
    if request.continue_final_message is not None:
        return request.continue_final_message
    last = request.messages[-1]
    if isinstance(last, AssistantMessage) and last.prefix is not None:
        return last.prefix
    if request.add_generation_prompt is not None:
        return not request.add_generation_prompt
    return None
