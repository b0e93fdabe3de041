"""Fields of a chat request that only make sense, or only contradict each other, together."""

from __future__ import annotations

from model.errors import InputError
from server.openai.chat_schema import ChatRequest, SamplingFields
from server.openai.message_schema import AssistantMessage

_OURS = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""Variables of the template that a request sets by its own fields only."""


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
