"""A server that kills itself in the middle of a disk write: ``python suicide.py POINT N serve ...``.

POINT is where in the writing of a file, N the how many-th write of the process it is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from cache.disk import blob
from server.cli import main

POINTS = ("opened", "half", "written", "synced", "replaced", "deleting", "deleted", "packing")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Killer:
    """Counts writes and deletions, and ends the process inside the N-th."""

    def __init__(self, point: str, n: int) -> None:
        self._point = point
        self._n_left = n

    def install(self) -> None:
        """Have the cache folder written through this."""
        if self._point in ("deleting", "deleted"):
            self._wrap(Path, "unlink")
            return
        if self._point == "packing":
            self._wrap(blob, "pack")
            return
        blob.write = self._write

    def _is_due(self) -> bool:
        self._n_left -= 1
        return self._n_left == 0

    def _wrap(self, owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapper(*args: Any, **options: Any) -> Any:
            is_due = self._is_due()
            if is_due and self._point != "deleted":
                die()
            result = original(*args, **options)
            if is_due:
                die()
            return result

        setattr(owner, name, wrapper)

    def _write(self, path: Path, content: bytes) -> None:
        """As :func:`cache.disk.blob.write`, step by step."""
        is_due = self._is_due()

        def reached(point: str) -> None:
            if is_due and self._point == point:
                die()

        temporary = path.with_name(path.name + blob.TEMPORARY)
        file: BinaryIO
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            reached("opened")
            file.write(content[: len(content) // 2])
            file.flush()
            reached("half")
            file.write(content[len(content) // 2 :])
            file.flush()
            reached("written")
            os.fsync(file.fileno())
            reached("synced")
        os.replace(temporary, path)
        reached("replaced")


if __name__ == "__main__":
    _, point, n, *arguments = sys.argv
    Killer(point, int(n)).install()
    sys.exit(main(arguments))
