"""Takes the port, before anything that costs time is done."""

from __future__ import annotations

import errno
import ipaddress
import socket

from model.errors import CrossturnError


class ListenError(CrossturnError):
    """The address cannot be listened on; the message is one line for a terminal."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    It listens from now on, not only once the model is loaded: a second server on the same port finds out at
    once, and who connects early waits instead of being turned away.

    Raises:
        ListenError: the port is taken, or the address is none of this machine's.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on {host}: {error.strerror}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of a server that was here a moment ago must not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = "is another server running there?" if error.errno == errno.EADDRINUSE else error.strerror
        raise ListenError(f"cannot listen on {host}:{port}: {reason}") from None
    return listener


def is_loopback(host: str) -> bool:
    """Whether what listens on ``host`` is reached from this machine alone."""
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
