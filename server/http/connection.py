"""What stands before the routes: the connection, with limits on time, and the gate of every request."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from model.errors import CrossturnError, InputError
from server.errors import ForbiddenError, HeadTooLargeError, error_body
from server.http.intake import Keys
from server.settings import Settings
from server.telemetry.log import current_request

log = logging.getLogger("crossturn.gate")

MAX_HEAD_BYTES = 64 * 1024

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PROBES_S = (0.0, 0.05, 0.5, 2.0)
"""Delays after which a half-closed client is asked whether it is still there; the last one repeats."""


class Connection(H11Protocol):
    """Uvicorn's protocol over h11 that also limits the time of a request's head, answers errors in JSON, and
    serves clients that have shut down their sending side.

    Such a client looks like one that has disconnected. ``100 Continue`` tells them apart: a client that still
    reads skips it; one that has disconnected resets the connection, so that the next write fails.

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
            self.transport.close()  # the client can send no further request

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
        self._answer(400, InputError("This is not a valid HTTP request.", code="invalid_http"))

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


class Gate:
    """Gives each request an id, handles HEAD as GET, refuses foreign Host headers, and answers faults.

    Args:
        app: the application behind the gate.
        answer: makes the response to an error, in the dialect of the request.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, keys: Keys, answer: Callable[[Request, Exception], Response]
    ) -> None:
        self._app = app
        self._answer = answer
        self._name = settings.server_name
        # A page that binds its own host name to this machine's address (DNS rebinding) has no key to send.
        self._checks_host = not keys.are_asked_for
        self._hosts = frozenset(host.lower() for host in (*settings.allowed_hosts, settings.host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        inner = {**scope, "state": {**scope.get("state", {}), "request_id": uuid.uuid4().hex}}
        current_request.set(inner["state"]["request_id"])
        response = _Response(send, inner, self._name)
        if scope["method"] == "HEAD":
            inner["method"] = "GET"
        try:
            self._check(Headers(scope=scope))
            await self._app(inner, receive, response.send)
        except CrossturnError as error:
            await self._answer(Request(inner), error)(inner, receive, response.send)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except ClientDisconnect:
            log.info("the client disconnected before its request was complete")
        except BaseException as fault:  # a panic in a Rust library is not an Exception
            if response.has_begun:
                raise
            log.critical("fault in %s", scope["method"], exc_info=fault)
            await self._answer(Request(inner), RuntimeError())(inner, receive, response.send)

    def _check(self, headers: Headers) -> None:
        if "content-length" in headers and "transfer-encoding" in headers:
            raise InputError("A request must not have both Content-Length and Transfer-Encoding.")
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            raise HeadTooLargeError(f"The headers are longer than {MAX_HEAD_BYTES} bytes.")
        host = headers.get("host", "")
        if self._checks_host and host and not _is_ours(host, self._hosts):
            raise ForbiddenError(
                "A server without API keys answers only to localhost, to addresses, and to the names that "
                "--allowed-host gives.",
                code="host_not_allowed",
            )


class _Response:
    """Sends a response with the headers that every response has, and without its body to HEAD."""

    def __init__(self, send: Send, scope: Scope, name: str) -> None:
        self._send = send
        self._state = scope["state"]
        self._has_body = scope["method"] != "HEAD"
        self._name = name
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            headers.setdefault("X-Request-Id", self._state["request_id"])
            headers["X-Served-By"] = self._name
        elif not self._has_body:
            message = {**message, "body": b""}
        await self._send(message)


def _is_ours(host: str, names: Iterable[str]) -> bool:
    """Whether the Host header ``host`` is a name of this machine, an address, or one of ``names``."""
    name = host.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or name in names or "*" in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
