"""Disks that take no more, over HTTP: replies are right, and nothing half written stays.

``--small-disk FOLDER`` names a folder on a file system of a MiB or so; without it, no file may have more than
64 KiB.
"""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.process import Process, serving

SYSTEM = {"role": "system", "content": "You are kind, and you answer in one short sentence. " * 12}


def lead(server: Process, session: str, n_turns: int) -> list[dict[str, Any]]:
    """A conversation of some turns; the replies."""
    talk, replies = [SYSTEM], []
    for number in range(n_turns):
        talk.append({"role": "user", "content": f"What is {number + 11} + 20?"})
        replies.append(server.ask(talk, session)["choices"][0]["message"])
        talk.append(replies[-1])
    return replies


@pytest.mark.slow
def test_x8_a_full_disk_costs_no_reply_and_leaves_nothing_half_written(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    small = request.config.getoption("--small-disk")
    folder = Path(small) / "cache" if small else tmp_path / "cache"

    def bound() -> None:
        if not small:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))

    with serving(tmp_path / "cold") as cold:
        right = lead(cold, "any", 3)
    log = tmp_path / "log"
    for _ in range(2):  # a full disk at the start too
        with serving(log, "--cache-dir", str(folder), preexec=bound) as server:
            for session in range(6):
                assert lead(server, f"session {session}", 3) == right
            assert server.end(signal.SIGTERM) == 0
    told = log.read_text()
    assert "cannot write the cache folder" in told
    assert "Traceback" not in told
    assert not list(folder.rglob("*.part"))
    with serving(log, "--cache-dir", str(folder)) as server:
        assert lead(server, "session 0", 3) == right
