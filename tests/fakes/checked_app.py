"""Reads along whatever a server under test sends, and checks it against its dialect's own types."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.fakes import anthropic_types, openai_types
from tests.fakes.response_stream import ResponseStream, check_of_response_path

Check = Callable[[dict[str, Any]], object]


class StreamCheck(Protocol):
    """Reads one stream's events."""

    def read(self, event: str | None, data: str) -> None:
        """Take in an event: its name, where it has one, and its data."""
        ...

    def finish(self) -> None:
        """The stream is over."""
        ...


@dataclass(frozen=True)
class Checks:
    """What one dialect sends.

    Attributes:
        error: checks the body of every response that is no success.
        of_body: finds what checks the body of a success, by method and path.
        stream: makes what checks a stream at a path.
    """

    error: Check
    of_body: Callable[[str, str], Check | None]
    stream: Callable[[str], StreamCheck]


def by_path(whole: dict[str, Check], below: dict[str, Check]) -> Callable[[str, str], Check | None]:
    """Checks by path, whatever the method; ``below`` by the beginning of a path."""

    def of_body(_: str, path: str) -> Check | None:
        if path in whole:
            return whole[path]
        return next((check for start, check in below.items() if path.startswith(start)), None)

    return of_body


OPENAI_CHUNKS: dict[str, Check] = {
    "/v1/chat/completions": openai_types.check_chunk,
    "/v1/completions": openai_types.check_completion,
}


class OpenAIStream:
    """Chunks without names, and ``[DONE]`` behind them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_done = self._has_failed = False
        self._ids: set[str] = set()

    def read(self, event: str | None, data: str) -> None:
        assert event is None
        assert not self._is_done, "something follows [DONE]"
        self._is_done = data == "[DONE]"
        if not self._is_done:
            self._read_frame(json.loads(data))

    def finish(self) -> None:
        assert self._is_done, "no [DONE] at the end"

    def _read_frame(self, body: dict[str, Any]) -> None:
        assert not self._has_failed, "something follows the error"
        if "error" in body:
            self._has_failed = True
            openai_types.check_error(body)
            return
        OPENAI_CHUNKS[self._path](body)
        self._ids.add(body["id"])
        assert len(self._ids) == 1, "chunks have several ids"


class AnthropicStream:
    """Events that are named as their types are."""

    def __init__(self, path: str) -> None:
        assert path == "/v1/messages"
        self._order = anthropic_types.EventOrder()

    def read(self, event: str | None, data: str) -> None:
        body = json.loads(data)
        assert body["type"] == event
        (anthropic_types.check_error if event == "error" else anthropic_types.check_event)(body)
        self._order.read(body)

    def finish(self) -> None:
        assert self._order.is_over, "the stream breaks off"


class ResponsesStream:
    """Events that are named as their types are, numbered and in OpenAI's order."""

    def __init__(self, _: str) -> None:
        self._events = ResponseStream()

    def read(self, event: str | None, data: str) -> None:
        self._events.read([f"event: {event}\ndata: {data}"], is_last=False)

    def finish(self) -> None:
        self._events.read([], is_last=True)


OPENAI = Checks(
    error=openai_types.check_error,
    of_body=by_path(
        {
            "/v1/chat/completions": openai_types.check_chat,
            "/v1/completions": openai_types.check_completion,
            "/v1/models": openai_types.check_models,
            "/v1/models/": openai_types.check_models,
        },
        {"/v1/models/": openai_types.check_model},
    ),
    stream=OpenAIStream,
)
ANTHROPIC = Checks(
    error=anthropic_types.check_error,
    of_body=by_path(
        {
            "/v1/messages": anthropic_types.check_message,
            "/v1/messages/count_tokens": anthropic_types.check_count,
            "/v1/models": anthropic_types.check_models,
        },
        {"/v1/models/": anthropic_types.check_model},
    ),
    stream=AnthropicStream,
)
RESPONSES = Checks(error=openai_types.check_error, of_body=check_of_response_path, stream=ResponsesStream)


def checks_of(scope: Scope) -> Checks:
    """The dialect of a request, as its client means it."""
    headers = {name.lower() for name, _ in scope["headers"]}
    if scope["path"].startswith("/v1/messages") or b"anthropic-version" in headers:
        return ANTHROPIC
    return RESPONSES if scope["path"].startswith("/v1/responses") else OPENAI


@dataclass
class CheckedApp:
    """``app``, with a reader beside every response, whatever client asked for it.

    Attributes:
        violations: what was sent that the dialect's owner would not have sent; must stay empty.
        n_checked: bodies and frames that were read.
    """

    app: ASGIApp
    violations: list[str] = field(default_factory=list)
    n_checked: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("HEAD", "OPTIONS"):
            await self.app(scope, receive, send)
            return
        checks = checks_of(scope)
        reader = _Reader(scope["path"], checks, checks.of_body(scope["method"], scope["path"]))

        async def read_along(message: Message) -> None:
            try:
                self.n_checked += reader.read(message)
            except Exception:
                self.violations.append(f"{scope['method']} {scope['path']}: {traceback.format_exc(limit=-2)}")
            await send(message)

        await self.app(scope, receive, read_along)


class _Reader:
    """One response as it is sent."""

    def __init__(self, path: str, checks: Checks, whole: Check | None) -> None:
        self._path = path
        self._checks = checks
        self._whole = whole
        self._status = 0
        self._stream: StreamCheck | None = None
        self._held = b""

    def read(self, message: Message) -> int:
        """Take in one ASGI message; how many bodies or frames were checked."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = {name.lower(): value for name, value in message["headers"]}
            if headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                self._stream = self._checks.stream(self._path)
            return 0
        self._held += message.get("body", b"")
        is_last = not message.get("more_body")
        return self._read_body(is_last) if self._stream is None else self._read_frames(self._stream, is_last)

    def _read_body(self, is_last: bool) -> int:
        if not is_last or not self._held:
            return 0
        if self._path in ("/health", "/ready"):  # whose 503 is an answer, not an error
            return 0
        check = self._checks.error if self._status >= 400 else self._whole
        if check is None:
            return 0
        check(json.loads(self._held))
        return 1

    def _read_frames(self, stream: StreamCheck, is_last: bool) -> int:
        *frames, self._held = self._held.split(b"\n\n")
        told = [frame.decode() for frame in frames if not frame.startswith(b":")]
        for frame in told:
            name, _, data = frame.partition("data: ")
            stream.read(name.removeprefix("event: ").strip() or None, data)
        if is_last:
            assert not self._held
            stream.finish()
        return len(told)
