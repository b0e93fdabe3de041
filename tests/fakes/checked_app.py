"""Reads along whatever a server under test sends, and checks it against OpenAI's own types."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.fakes.openai_types import (
    check_chat,
    check_chunk,
    check_completion,
    check_error,
    check_model,
    check_models,
)
from tests.fakes.response_stream import ResponseStream, check_of_response_path

Check = Callable[[dict[str, Any]], object]

WHOLE: dict[str, Check] = {"/v1/chat/completions": check_chat, "/v1/completions": check_completion}
CHUNK: dict[str, Check] = {"/v1/chat/completions": check_chunk, "/v1/completions": check_completion}


@dataclass
class CheckedApp:
    """``app``, with a reader beside every response, whatever client asked for it.

    Attributes:
        violations: what was sent that OpenAI would not have sent; must stay empty.
        n_checked: bodies and frames that were read.
    """

    app: ASGIApp
    violations: list[str] = field(default_factory=list)
    n_checked: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("HEAD", "OPTIONS"):
            await self.app(scope, receive, send)
            return
        reader = _Reader(scope["path"], scope["method"])

        async def read_along(message: Message) -> None:
            try:
                self.n_checked += reader.read(message)
            except Exception:
                self.violations.append(f"{scope['method']} {scope['path']}: {traceback.format_exc(limit=-2)}")
            await send(message)

        await self.app(scope, receive, read_along)


class _Reader:
    """One response as it is sent."""

    def __init__(self, path: str, method: str) -> None:
        self._path = path
        self._check_of_response = check_of_response_path(method, path)
        self._responses = ResponseStream()
        self._status = 0
        self._is_stream = False
        self._held = b""
        self._is_done = self._has_failed = False
        self._ids: set[str] = set()

    def read(self, message: Message) -> int:
        """Take in one ASGI message; how many bodies or frames were checked."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = {name.lower(): value for name, value in message["headers"]}
            self._is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
            return 0
        self._held += message.get("body", b"")
        is_last = not message.get("more_body")
        return self._read_frames(is_last) if self._is_stream else self._read_body(is_last)

    def _read_body(self, is_last: bool) -> int:
        if not is_last or not self._held:
            return 0
        check = self._check_of_body()
        if check is None:
            return 0
        check(json.loads(self._held))
        return 1

    def _check_of_body(self) -> Check | None:
        if self._status >= 400:
            return check_error
        if self._path == "/v1/models":
            return check_models
        if self._check_of_response is not None:
            return self._check_of_response
        return check_model if self._path.startswith("/v1/models/") else WHOLE.get(self._path)

    def _read_frames(self, is_last: bool) -> int:
        *frames, self._held = self._held.split(b"\n\n")
        if self._check_of_response is not None:
            return self._responses.read([frame.decode() for frame in frames], is_last=is_last)
        data = [frame.removeprefix(b"data: ").decode() for frame in frames if not frame.startswith(b":")]
        for frame in data:
            assert not self._is_done, "something follows [DONE]"
            self._is_done = frame == "[DONE]"
            if not self._is_done:
                self._read_frame(json.loads(frame))
        assert not is_last or (self._is_done and not self._held), "no [DONE] at the end"
        return len(data)

    def _read_frame(self, body: dict[str, Any]) -> None:
        assert not self._has_failed, "something follows the error"
        if "error" in body:
            self._has_failed = True
            check_error(body)
            return
        CHUNK[self._path](body)
        self._ids.add(body["id"])
        assert len(self._ids) == 1, "chunks have several ids"
