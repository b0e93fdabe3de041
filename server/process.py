"""What a server takes from the system before anything that takes time: its port, and its signals.

MLX compiles kernels through ``system()``, which ignores SIGINT while the compiler runs, so that a Ctrl-C
would be lost. A blocked signal is not lost but stays pending: so all are blocked, in every thread, and one
thread waits for them.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from model.errors import CrossturnError

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

Handler = Callable[[signal.Signals], None]


class ListenError(CrossturnError):
    """The server cannot listen on an address; the message is one line for a terminal."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    It listens at once, long before the model is loaded: a second server on the same port fails immediately,
    and a client that connects early waits instead of being refused.

    Raises:
        ListenError: the port is taken, or the address is not one of this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on {host}: {error.strerror}") from None
    # Without its name asyncio would not know that this is TCP, and leave Nagle's algorithm on: a small write
    # would wait for the client's acknowledgement of the last one, which takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Connections that a server just stopped has left must not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = "is another server running there?" if error.errno == errno.EADDRINUSE else error.strerror
        raise ListenError(f"cannot listen on {host}:{port}: {reason}") from None
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(addresses) and all(ipaddress.ip_address(address).is_loopback for address in addresses)


def url_of(listener: socket.socket) -> str:
    """The base URL that clients use."""
    host, port = listener.getsockname()[:2]
    if listener.family == socket.AF_INET6:
        host = f"[{host}]"
    return f"http://{host}:{port}/v1"


class SignalWatch:
    """Calls ``handler`` for every signal, on a thread of its own.

    Attributes:
        handler: may be replaced at any time; the first one ends the process at once.
    """

    def __init__(self) -> None:
        self.handler: Handler = end_at_once
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Watch while the context lasts. Threads started inside inherit the blocked signals: enter it before
        any is started."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._thread.start()
        try:
            yield
        finally:
            self._is_over = True
            assert self._thread.ident is not None
            signal.pthread_kill(self._thread.ident, signal.SIGTERM)
            self._thread.join()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        while True:
            received = signal.sigwait(SIGNALS)
            if self._is_over:
                return
            self.handler(signal.Signals(received))


def end_at_once(received: signal.Signals) -> None:
    """End the process with the exit code of a signal; for the time in which there is nothing to clean up."""
    os._exit(128 + received)
