"""Which files the cache folder holds, who needs them, and which go first when it is full."""

from __future__ import annotations

import fcntl
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO

from cache.blob import TEMPORARY
from cache.writer import Job, Writer

MAX_WAITING_BYTES = 512 * 2**20
"""Bytes on their way to the disk at most; beyond that nothing new is sent there."""

_NAME = re.compile(r"[0-9a-f]{32}\.(rows|state)")
_UNFINISHED = re.compile(rf"[0-9a-f]{{32}}(\.rows|\.state)?{re.escape(TEMPORARY)}")


class Files:
    """The folder's content files: counted, wanted, bounded.

    What is known here is what the disk holds once the writer has done all its jobs. A file that nobody
    needs any more is deleted at once, except that of an interrupted write, which will be needed again:
    it goes when room is needed, or at the next start.
    """

    def __init__(self, folder: Path, writer: Writer, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._writer = writer
        self._sizes: dict[str, int] = {}
        self._holders: Counter[str] = Counter()

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    @property
    def is_congested(self) -> bool:
        """Whether the disk is too far behind to be sent more."""
        return self._writer.n_waiting_bytes > MAX_WAITING_BYTES

    def sum_of(self, names: Iterable[str]) -> int:
        """Bytes of ``names`` together."""
        return sum(self._sizes.get(name, 0) for name in names)

    def found(self, name: str, n_bytes: int) -> None:
        """Note that the folder holds ``name``."""
        self.n_bytes += n_bytes - self._sizes.get(name, 0)
        self._sizes[name] = n_bytes

    def scan(self) -> None:
        """Learn what the folder holds."""
        for path in finished(self.folder):
            if _NAME.fullmatch(path.name):
                self.found(path.name, path.stat().st_size)

    def write(self, job: Job) -> None:
        """Write a file that is not there."""
        self.found(job.path.name, job.n_bytes)
        self._writer.put(job)

    def hold(self, names: Collection[str]) -> None:
        """Somebody needs ``names``, which may not be there yet."""
        self._holders.update(names)

    def release(self, names: Collection[str], *, delete: bool = True) -> None:
        """Somebody needs ``names`` no longer; what nobody needs is deleted."""
        self._holders.subtract(names)
        for name in names:
            if self._holders[name] <= 0:
                del self._holders[name]
                if delete:
                    self.delete(name)

    def delete_unneeded(self) -> None:
        """Delete what nobody needs."""
        for name in [name for name in self._sizes if name not in self._holders]:
            self.delete(name)

    def delete(self, name: str) -> None:
        """Delete ``name``, if it is there."""
        if name in self._sizes:
            self.n_bytes -= self._sizes.pop(name)
            self._writer.put(Job(self.folder / name))


def finished(folder: Path) -> tuple[Path, ...]:
    """The files of ``folder`` in order of name; those whose writing was cut off are deleted."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            path.unlink()
    return tuple(sorted(folder.iterdir()))


def claim(folder: Path) -> IO[str]:
    """Make ``folder`` where it is missing, and keep other processes out until the file returned is
    closed, or the process ends.

    Raises:
        OSError: the folder cannot be used; ``BlockingIOError`` when another process uses it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = (folder / "in-use").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
