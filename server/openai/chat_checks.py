"""Fields of a chat request that only make sense, or only contradict each other, together."""

from __future__ import annotations

from model.errors import InputError
from server.openai.chat_schema import ChatRequest, SamplingFields
from server.openai.message_schema import AssistantMessage


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
