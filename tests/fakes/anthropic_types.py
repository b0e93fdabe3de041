"""The ``anthropic`` package's own types, made strict: no field may be there that Anthropic does not have."""

from __future__ import annotations

from typing import Any, TypeVar

from anthropic.types import (
    ErrorResponse,
    Message,
    MessageTokensCount,
    ModelInfo,
    RawMessageStreamEvent,
)
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

M = TypeVar("M", bound=BaseModel)

EXTENSIONS: dict[str, frozenset[str]] = {
    "Message": frozenset({"crossturn"}),
    "BetaMessage": frozenset({"crossturn"}),
    "RawMessageStartEvent": frozenset({"crossturn"}),
    "RawMessageDeltaEvent": frozenset({"crossturn"}),
    "BetaRawMessageStartEvent": frozenset({"crossturn"}),
    "BetaRawMessageDeltaEvent": frozenset({"crossturn"}),
}
"""What this server adds, by the type it adds it to."""
USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_BETA_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)


def check_message(body: dict[str, Any]) -> Message:
    """``body`` as a whole reply. What Anthropic always sends is there, though its type may lack it."""
    _require(body, "stop_reason", "stop_sequence", "crossturn")
    _require(body["usage"], *USAGE)
    assert body["stop_reason"] is not None
    _checked(BetaMessage, body)
    return _checked(Message, body)


def check_event(body: dict[str, Any]) -> Any:
    """``body`` as an event of a stream; the ``ping`` that Anthropic sends has no type in its package."""
    if body["type"] == "ping":
        assert set(body) == {"type"}
        return None
    if body["type"] == "message_start":
        _require(body["message"], "stop_reason", "stop_sequence")
        _require(body["message"]["usage"], *USAGE)
        assert body["message"]["content"] == []
    if body["type"] == "message_delta":
        _require(body["delta"], "stop_reason", "stop_sequence")
        _require(body["usage"], *USAGE)
    event = _EVENT.validate_python(body, strict=True)
    for parsed in (event, _BETA_EVENT.validate_python(body, strict=True)):
        assert parsed.type == body["type"]
        _refuse_extras(parsed, type(parsed).__name__)
    return event


def check_count(body: dict[str, Any]) -> MessageTokensCount:
    """``body`` as a number of tokens."""
    return _checked(MessageTokensCount, body)


def check_model(body: dict[str, Any]) -> ModelInfo:
    """``body`` as a model."""
    return _checked(ModelInfo, body, strict=False)  # times are strings in JSON


def check_models(body: dict[str, Any]) -> list[ModelInfo]:
    """``body`` as a page of models."""
    assert set(body) == {"data", "has_more", "first_id", "last_id"}
    return [check_model(model) for model in body["data"]]


def check_error(body: dict[str, Any]) -> None:
    """``body`` as what Anthropic answers when it refuses or fails."""
    assert set(body) == {"type", "error", "request_id"}, f"an error has {sorted(body)}"
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["message"]
    if body["error"]["type"] == "request_too_large":
        return  # of Anthropic's documentation; its package does not know it
    _checked(ErrorResponse, body)


class EventOrder:
    """The order of one stream's events: blocks count up and never interleave."""

    def __init__(self) -> None:
        self._n_blocks = 0
        self._is_open = False
        self._seen: list[str] = []

    def read(self, body: dict[str, Any]) -> None:
        """Take in the next event."""
        kind = body["type"]
        if kind == "ping":
            return
        assert "message_stop" not in self._seen, "something follows message_stop"
        assert "error" not in self._seen, "something follows the error"
        if kind == "message_start":
            assert not self._seen
        elif kind != "error":
            assert self._seen, f"{kind} comes first"
        if kind == "content_block_start":
            assert not self._is_open, "blocks interleave"
            assert body["index"] == self._n_blocks
            self._is_open = True
        elif kind in ("content_block_delta", "content_block_stop"):
            assert self._is_open, f"{kind} outside a block"
            assert body["index"] == self._n_blocks
        if kind == "content_block_stop":
            self._is_open = False
            self._n_blocks += 1
        if kind in ("message_delta", "message_stop"):
            assert not self._is_open
        self._seen.append(kind)

    @property
    def is_over(self) -> bool:
        """The stream has come to an end of its own."""
        return bool(self._seen) and self._seen[-1] in ("message_stop", "error")


def _require(body: dict[str, Any], *names: str) -> None:
    missing = [name for name in names if name not in body]
    assert not missing, f"{missing} missing"


def _checked(kind: type[M], body: dict[str, Any], *, strict: bool = True) -> M:
    parsed = TypeAdapter(kind).validate_python(body, strict=strict)
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
