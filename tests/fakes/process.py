"""``crossturn serve`` as a process that can be killed, with its log in a file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

SERVE = (sys.executable, "-m", "server.cli", "serve")
FIXED = {"temperature": 0, "enable_thinking": False, "max_tokens": 16}
"""With these a conversation has one right reply."""


class NotReadyError(Exception):
    """The process ended before it was ready."""


@dataclass
class Process:
    """A running server."""

    popen: subprocess.Popen[str]
    url: str
    log: Path

    def ask(self, messages: Sequence[dict[str, Any]], session: str, **fields: Any) -> dict[str, Any]:
        """The body of the reply to ``messages``."""
        answer = httpx.post(
            f"{self.url}/v1/chat/completions",
            json={"messages": list(messages), **FIXED, **fields},
            headers={"X-Session-Id": session},
            timeout=120,
        )
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def end(self, signal: int) -> int:
        """Send ``signal`` and wait; the exit status."""
        self.popen.send_signal(signal)
        return self.popen.wait(timeout=120)


@contextmanager
def serving(
    log: Path,
    *options: str,
    command: Sequence[str] = SERVE,
    environment: dict[str, str] | None = None,
    preexec: Callable[[], None] | None = None,
) -> Iterator[Process]:
    """A server on a free port, once it is ready; killed in the end, if it still runs.

    Raises:
        NotReadyError: it ended before.
    """
    with log.open("a") as stderr:
        popen = subprocess.Popen(
            [*command, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
            preexec_fn=preexec,
        )
    with popen:
        try:
            assert popen.stdout is not None
            line = popen.stdout.readline()
            if "is ready at" not in line:
                raise NotReadyError(log.read_text())
            yield Process(popen, line.split()[4].removesuffix("/v1"), log)
        finally:
            popen.kill()
