"""The ``openai`` package's own types, made strict: no field may be there that OpenAI does not have."""

from __future__ import annotations

from typing import Any, TypeVar

from openai.types import Completion, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import BaseModel, TypeAdapter

M = TypeVar("M", bound=BaseModel)

EXTENSIONS: dict[str, frozenset[str]] = {
    "ChatCompletion": frozenset({"crossturn"}),
    "ChatCompletionChunk": frozenset({"crossturn", "prompt_progress"}),
    "ChatCompletionMessage": frozenset({"reasoning_content", "reasoning"}),
    "ChoiceDelta": frozenset({"reasoning_content", "reasoning"}),
    "Completion": frozenset({"crossturn"}),
    "Model": frozenset({"context_length", "max_model_len"}),
    # Open Responses has these of OpenAI's own responses, whose types lack them; calls do have a status.
    "Response": frozenset({"crossturn", "store", "presence_penalty", "frequency_penalty"}),
    "ResponseCustomToolCall": frozenset({"status"}),
    "WebSearchTool": frozenset({"search_content_types"}),
}
"""What this server adds, by the type it adds it to."""


def check_chat(body: dict[str, Any]) -> ChatCompletion:
    """``body`` as a whole chat completion. What OpenAI always sends is there, though its type may lack it."""
    _require(body, "usage")
    for choice in body["choices"]:
        _require(choice, "logprobs")
        _require(choice["message"], "content", "refusal")
    return _checked(ChatCompletion, body)


def check_chunk(body: dict[str, Any]) -> ChatCompletionChunk:
    """``body`` as a chunk of a streamed one."""
    for choice in body["choices"]:
        _require(choice, "logprobs", "finish_reason")
    return _checked(ChatCompletionChunk, body)


def check_completion(body: dict[str, Any]) -> Completion:
    """``body`` as a plain completion. OpenAI's own pieces of a stream have no finish reason, which the type
    does not know."""
    choices = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in body["choices"]]
    usage = {} if body.get("usage", 0) is None else {"usage": body.get("usage")} if "usage" in body else {}
    rest = {name: value for name, value in body.items() if name not in ("choices", "usage")}
    return _checked(Completion, {**rest, **usage, "choices": choices})


RESPONSE_FIELDS = (
    *("background", "completed_at", "error", "frequency_penalty", "incomplete_details", "instructions"),
    *("max_output_tokens", "max_tool_calls", "metadata", "presence_penalty", "previous_response_id"),
    *("prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "status", "store"),
    *("temperature", "text", "top_logprobs", "top_p", "truncation", "usage", "user"),
)
"""What OpenAI's responses always have besides what their type requires, though it may be null."""
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def check_response(body: dict[str, Any]) -> Response:
    """``body`` as a response, whole or in the making."""
    _require(body, *RESPONSE_FIELDS)
    for item in body["output"]:
        check_item(item)
    return _checked(Response, body)


def check_event(body: dict[str, Any]) -> Any:
    """``body`` as an event of a streamed response."""
    if "response" in body:
        check_response(body["response"])
    if "item" in body:
        check_item(body["item"])
    event = _EVENT.validate_python(body, strict=True)
    assert event.type == body["type"], f"{body['type']} is none of OpenAI's events"
    _refuse_extras(event, body["type"])
    return event


def check_item(item: dict[str, Any]) -> None:
    """``item`` as one that was made or is kept."""
    _require(item, "id", "type", *(("status",) if item["type"] != "additional_tools" else ()))
    for part in item.get("content") or ():
        if part["type"] == "output_text" and item["role"] == "assistant":
            _require(part, "annotations")


def check_items(body: dict[str, Any]) -> ResponseItemList:
    """``body`` as a page of items."""
    for item in body["data"]:
        check_item(item)
    return _checked(ResponseItemList, body)


def check_input_tokens(body: dict[str, Any]) -> InputTokenCountResponse:
    """``body`` as the length of a prompt."""
    return _checked(InputTokenCountResponse, body)


def check_deleted(body: dict[str, Any]) -> None:
    """``body`` as what is left of a deleted response."""
    assert body == {"id": body["id"], "object": "response", "deleted": True}


def check_model(body: dict[str, Any]) -> Model:
    """``body`` as a model."""
    return _checked(Model, body)


def check_models(body: dict[str, Any]) -> list[Model]:
    """``body`` as the list of models."""
    assert {**body, "data": []} == {"object": "list", "data": []}
    return [check_model(model) for model in body["data"]]


def check_error(body: dict[str, Any]) -> ErrorObject:
    """``body`` as what OpenAI answers when it refuses or fails."""
    assert set(body) == {"error"}, f"an error has {sorted(body)}"
    assert body["error"]["message"]
    _require(body["error"], "param", "code")
    return _checked(ErrorObject, body["error"])


def _require(body: dict[str, Any], *names: str) -> None:
    missing = [name for name in names if name not in body]
    assert not missing, f"{missing} missing"


def _checked(kind: type[M], body: dict[str, Any]) -> M:
    parsed = TypeAdapter(kind).validate_python(body, strict=True)
    _refuse_extras(parsed, kind.__name__)
    return parsed


def _refuse_extras(value: object, where: str) -> None:
    if isinstance(value, BaseModel):
        extras = set(value.__pydantic_extra__ or {}) - EXTENSIONS.get(type(value).__name__, frozenset())
        assert not extras, f"{where} has {sorted(extras)}"
        for name in type(value).model_fields:
            _refuse_extras(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _refuse_extras(item, f"{where}[{i}]")
