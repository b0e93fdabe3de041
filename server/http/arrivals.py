"""Bodies on their way in, all together: how long each may take, and how much memory they may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from server.errors import LateBodyError, UnavailableError


class Arrivals:
    """The bodies that are being received.

    Args:
        max_bytes: what they may hold together; one more is refused.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._timeouts: set[asyncio.Timeout] = set()
        self._is_over = False

    @asynccontextmanager
    async def one(self, seconds: float) -> AsyncGenerator[Arriving, None]:
        """Receive a body inside, within ``seconds``.

        Raises:
            LateBodyError: it takes longer.
            UnavailableError: the server stops meanwhile, or there is no memory for it.
        """
        arriving = Arriving(self)
        try:
            async with asyncio.timeout(0 if self._is_over else seconds) as timeout:
                self._timeouts.add(timeout)
                try:
                    yield arriving
                finally:
                    self._timeouts.discard(timeout)
                    self._n_bytes -= arriving.n_bytes
        except TimeoutError:
            if self._is_over:
                raise UnavailableError(
                    "The server is shutting down.", code="shutting_down", retry_after_s=10
                ) from None
            raise LateBodyError(
                f"The body did not arrive within {seconds:g} s.", code="request_timeout"
            ) from None

    def hold(self, n_bytes: int) -> None:
        """Make room for ``n_bytes`` more."""
        if self._n_bytes + n_bytes > self._max_bytes:
            raise UnavailableError(
                "Too many requests are being received.", code="overloaded", retry_after_s=2
            )
        self._n_bytes += n_bytes

    def stop(self) -> None:
        """Wait for no body any longer."""
        self._is_over = True
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            timeout.reschedule(now)


class Arriving:
    """One body that is being received; its bytes count until it is handed over."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.n_bytes = 0

    def hold(self, n_bytes: int) -> None:
        """Make room for ``n_bytes`` more.

        Raises:
            UnavailableError: there is none.
        """
        self._arrivals.hold(n_bytes)
        self.n_bytes += n_bytes
