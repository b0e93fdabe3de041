"""Takes SIGINT, SIGTERM and SIGHUP, whatever the process is busy with.

MLX compiles kernels through ``system()``, which has SIGINT ignored as long as the compiler runs: a Ctrl-C
meanwhile would be lost. A blocked signal is not lost but waits, so all are blocked, in every thread, and one
thread waits for them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

Handler = Callable[[signal.Signals], None]


class SignalWatch:
    """Tells ``handler`` of every signal, on a thread of its own; at first one ends the process at once.

    Attributes:
        handler: what is called; may be replaced at any time.
    """

    def __init__(self) -> None:
        self.handler: Handler = end_at_once
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Watch as long as the context lasts. Threads begun inside leave the signals alone, so enter it
        before there are any."""
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
    """End the process as a shell reports it; for as long as there is nothing to wind up."""
    os._exit(128 + received)
