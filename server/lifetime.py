"""Runs the HTTP server until a signal arrives, and shuts it down gracefully."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from server.http.app import create_app, warm_up
from server.http.connection import MAX_HEAD_BYTES, connection_within
from server.http.gateway import Gateway
from server.http.intake import Keys
from server.process import SignalWatch

_LAST_WORDS_S = 0.5
_KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that they do not write into one that just closed."""


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains after a signal and exits with 0.

    After the first signal ``/ready`` fails, and after a delay the listener closes and the gateway drains. A
    second signal ends everything at once.

    Args:
        app: what ``config`` serves; it is warmed up before requests are accepted.
        watch: receives the signals.
        on_ready: called once, when requests are accepted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        gateway: Gateway,
        watch: SignalWatch,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._app = app
        self._watch = watch
        self._gateway = gateway
        self._on_ready = on_ready
        self._n_signals = 0

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn's own version raises the signal again at the end, which would make the exit code a failure.
        loop = asyncio.get_running_loop()
        before = self._watch.handler

        def tell(received: signal.Signals) -> None:
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(self.handle_exit, received, None)

        self._watch.handler = tell
        try:
            yield
        finally:
            self._watch.handler = before

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        self._n_signals += 1
        self._gateway.is_leaving = True
        if self._n_signals == 1:
            delay = self._gateway.settings.unready_seconds
            asyncio.get_running_loop().call_later(delay, self._leave)
            return
        self.should_exit = True
        self._gateway.end_runs()
        # Streams get a moment to say why they end.
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._go)

    def _leave(self) -> None:
        self.should_exit = True

    def _go(self) -> None:
        self.force_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await warm_up(self._app)
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        drain = asyncio.ensure_future(self._gateway.drain())
        await super().shutdown(sockets)
        drain.cancel()  # by now every client has its answer, or is cut off


def serve_http(
    gateway: Gateway, keys: Keys, listener: socket.socket, watch: SignalWatch, on_ready: Callable[[], None]
) -> None:
    """Serve ``gateway`` on ``listener`` to clients with one of ``keys``, until SIGINT, SIGTERM or SIGHUP."""
    app = create_app(gateway, keys)
    config = uvicorn.Config(
        app,
        http=connection_within(gateway.settings.receive_seconds),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(gateway.settings.drain_seconds) + 3,
    )
    DrainingServer(config, app, gateway, watch, on_ready).run(sockets=[listener])
