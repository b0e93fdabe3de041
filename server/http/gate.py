"""What is decided about every request before a route sees it, and said of every response."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model.errors import CrossturnError, InputError
from server.errors import ForbiddenError, HeadTooLargeError
from server.http.failures import Failures
from server.http.gateway import Gateway
from server.telemetry.log import current_request

log = logging.getLogger("crossturn.gate")

MAX_HEAD_BYTES = 64 * 1024


class Gate:
    """Numbers requests, answers HEAD as GET, refuses hosts that are not this server's, and answers faults.

    Args:
        app: what is behind the gate.
        failures: tell errors.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, failures: Failures) -> None:
        self._app = app
        self._failures = failures
        settings = gateway.settings
        self._name = settings.server_name
        # Who carries a key was not sent by a page that has bound its own name to this machine's address.
        self._checks_host = not gateway.keys.are_asked_for
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
            await self._failures.response(Request(inner), error)(inner, receive, response.send)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except ClientDisconnect:
            log.info("the client left before its request was there")
        except BaseException as fault:  # a panic of a library is no Exception
            if response.has_begun:
                raise
            log.critical("fault in %s", scope["method"], exc_info=fault)
            await self._failures.response(Request(inner), RuntimeError())(inner, receive, response.send)

    def _check(self, headers: Headers) -> None:
        if "content-length" in headers and "transfer-encoding" in headers:
            raise InputError("A request has either a Content-Length or a Transfer-Encoding.")
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            raise HeadTooLargeError(f"The headers are longer than {MAX_HEAD_BYTES} bytes.")
        host = headers.get("host", "")
        if self._checks_host and host and not _is_ours(host, self._hosts):
            raise ForbiddenError(
                "This server has no API keys and answers to names of this machine, to addresses, and to what "
                "--allowed-host names.",
                code="host_not_allowed",
            )


class _Response:
    """Passes a response on, with the headers that each has, and to HEAD without the body."""

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
