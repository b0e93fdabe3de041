"""The ``openai`` package's own types, made strict: no field may be there that OpenAI does not have."""

from __future__ import annotations

from typing import Any, TypeVar

from openai.types import Completion, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, TypeAdapter

M = TypeVar("M", bound=BaseModel)

EXTENSIONS: dict[str, frozenset[str]] = {
    "ChatCompletion": frozenset({"crossturn"}),
    "ChatCompletionChunk": frozenset({"crossturn"}),
    "ChatCompletionMessage": frozenset({"reasoning_content", "reasoning"}),
    "ChoiceDelta": frozenset({"reasoning_content", "reasoning"}),
    "Completion": frozenset({"crossturn"}),
    "Model": frozenset({"context_length", "max_model_len"}),
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
