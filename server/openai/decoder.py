"""Decodes the body of a chat completion request into a turn, and reads off how its reply is told."""

from __future__ import annotations

from dataclasses import dataclass

from model.errors import InputError
from server.http.intake import Arrival
from server.http.schema import parse
from server.openai.encoder import ChatReplyShape
from server.openai.messages import AllowedToolsChoice, AssistantMessage, NamedTool
from server.openai.schema import (
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    SamplingFields,
)
from server.settings import Settings
from server.turn.compose import ComposedTurn, compose
from server.turn.served import Served
from server.turn.turn import ResponseFormat, Sampling, Thinking, ToolChoice, Turn


@dataclass(frozen=True, slots=True)
class ComposedChat:
    """A chat request, ready to run, and the form of its reply."""

    turn: ComposedTurn
    shape: ChatReplyShape
    stream: bool


def compose_chat(arrival: Arrival, served: Served, settings: Settings) -> ComposedChat:
    """Read, check and render a request. Nothing of the engine is touched.

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
        session=arrival.session(request.prompt_cache_key, (request.metadata or {}).get("session_id")),
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
        max_tokens=request.max_completion_tokens or request.max_tokens,
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
        logit_bias={int(token): bias for token, bias in (fields.logit_bias or {}).items()},
    )


def stop_of(fields: SamplingFields) -> list[str]:
    """The stop strings."""
    return [fields.stop] if isinstance(fields.stop, str) else fields.stop or []


def _names(request: ChatRequest) -> dict[str, str]:
    """What this dialect calls the names among which a call must be."""
    match request.tool_choice:
        case NamedTool():
            return {"tool_choice.names[0]": "tool_choice.function.name"}
        case AllowedToolsChoice(allowed_tools=allowed):
            return {
                f"tool_choice.names[{i}]": f"tool_choice.allowed_tools.tools[{i}].function.name"
                for i in range(len(allowed.tools))
            }
        case _:
            return {}


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
    """Read ``enable_thinking``, ``chat_template_kwargs.enable_thinking`` and ``reasoning_effort``.

    Raises:
        InputError: the spellings contradict each other.
    """
    effort = request.reasoning_effort
    spellings = {
        "enable_thinking": request.enable_thinking,
        "chat_template_kwargs.enable_thinking": _from_kwargs(request),
        "reasoning_effort": None if effort is None else effort != "none",
    }
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(set(given.values())) > 1:
        raise InputError(
            f"These contradict each other: {', '.join(given)}.", param=list(given)[-1], code="invalid_value"
        )
    enabled = next(iter(given.values()), None)
    return Thinking(enabled=enabled, effort=effort, budget=request.thinking_budget)


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
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        service_tier=None if request.service_tier is None else "default",
        metadata=request.metadata,
    )


def check_stream_options(fields: SamplingFields) -> None:
    """Refuse options of a stream where none is wanted.

    Raises:
        InputError: as it says.
    """
    if fields.stream_options is not None and not fields.stream:
        raise InputError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")


def check_pairs(request: ChatRequest) -> None:
    """Refuse fields that make no sense together.

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
    """Whether the client says that the reply goes on writing the last message; None when it says nothing.

    Raises:
        InputError: it says both.
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
