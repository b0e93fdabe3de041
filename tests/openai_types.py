"""The ``openai`` package's own types, made strict: no field may be there that OpenAI does not have."""

from __future__ import annotations

from typing import Any, TypeVar

from openai.types import Completion, Model
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
    """``body`` as a whole chat completion."""
    return _checked(ChatCompletion, body)


def check_chunk(body: dict[str, Any]) -> ChatCompletionChunk:
    """``body`` as a chunk of a streamed one."""
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
