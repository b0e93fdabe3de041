"""One connection: uvicorn's protocol over h11, with limits on time and errors in JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from model.errors import InputError
from server.errors import error_body

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PROBES_S = (0.0, 0.05, 0.5, 2.0)
"""After so long a half-closed client is asked whether it is still there; the last delay repeats."""


class Connection(H11Protocol):
    """Closes when a request's head takes too long, and serves clients that send no more but still listen.

    A client that has shut down its sending side looks like one that has gone. ``100 Continue`` tells them
    apart: who listens skips it, who has gone resets the connection, which the next one then meets.

    Attributes:
        receive_s: seconds that the head of a request may take.
    """

    receive_s = 60.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._head is None and not self._is_answering:
            self._await_head()
        super().data_received(data)
        if self._is_answering:
            self._stop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._probe is not None and not self.transport.is_closing():
            self.transport.close()  # nothing more can come

    def eof_received(self) -> bool:  # type: ignore[override]
        if not self._is_answering or self.scope["http_version"] == "1.0" or self.cycle.more_body:
            return False
        self._ask(0)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._probe is not None:
            self._probe.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # a response is on its way
            return
        self._answer(400, InputError("This is not HTTP as it is understood here.", code="invalid_http"))

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self.receive_s, self._on_late_head)

    def _stop_timer(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _on_late_head(self) -> None:
        if self.transport.is_closing() or self._is_answering:
            return
        self._answer(408, InputError("The request did not arrive in time.", code="request_timeout"))

    def _answer(self, status: int, error: Exception) -> None:
        body = json.dumps(error_body(error)).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _ask(self, n_asked: int) -> None:
        if self.transport.is_closing() or not self._is_answering:
            return
        if not self.cycle.response_started:
            self.transport.write(CONTINUE)
        delay = _PROBES_S[min(n_asked + 1, len(_PROBES_S) - 1)]
        self._probe = self.loop.call_later(delay, self._ask, n_asked + 1)


def connection_within(receive_s: float) -> type[Connection]:
    """Connections that give a request's head ``receive_s`` seconds."""
    return type("Connection", (Connection,), {"receive_s": receive_s})
