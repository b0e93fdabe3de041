"""Which content files the cache folder holds, who needs them, and who may use the folder."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cache.disk.blob import TEMPORARY
from cache.disk.writer import Job, Writer

log = logging.getLogger("crossturn.cache")

MAX_WAITING_BYTES = 512 * 2**20
"""Bytes on their way to the disk at most; beyond that nothing new is sent there."""

_NAME = re.compile(r"[0-9a-f]{32}\.(rows|state)")
_UNFINISHED = re.compile(rf"[0-9a-f]{{32}}(\.rows|\.state)?{re.escape(TEMPORARY)}")


class Files:
    """The folder's content files: counted, wanted, bounded.

    What is known here is what the disk holds once the writer has done all its jobs; a file that could not
    be written is taken back as soon as that is known (:meth:`Writer.settle`). A file that nobody needs any
    more is deleted at once, except that of an interrupted write, which will be needed again: it goes when
    room is needed, or at the next start.
    """

    def __init__(self, folder: Path, writer: Writer, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._writer = writer
        self._sizes: dict[str, int] = {}
        self._writes: dict[str, object] = {}
        self._holders: Counter[str] = Counter()

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    @property
    def is_congested(self) -> bool:
        """Whether the disk is too far behind to be sent more."""
        return self._writer.n_waiting_bytes > MAX_WAITING_BYTES

    def has_room_for(self, n_bytes: int) -> bool:
        """Whether ``n_bytes`` more stay within the bound."""
        return self.n_bytes + n_bytes <= self.max_bytes

    def sum_of(self, names: Iterable[str]) -> int:
        """Bytes of ``names`` together."""
        return sum(self._sizes.get(name, 0) for name in names)

    def scan(self) -> None:
        """Learn what the folder holds."""
        for path in finished(self.folder, _NAME):
            self._count(path.name, path.stat().st_size)

    def write(self, name: str, content: Callable[[], bytes], n_bytes: int) -> None:
        """Write a file that is not there; ``content`` makes its bytes, about ``n_bytes``."""
        token = object()
        self._count(name, n_bytes)
        self._writes[name] = token
        done = partial(self._written, name, token)
        self._writer.put(Job(self.folder / name, content, n_bytes, done=done))

    def hold(self, names: Collection[str]) -> None:
        """Somebody needs ``names``, which may not be there yet."""
        self._holders.update(names)

    def hold_all(self) -> None:
        """Keep every file that is there, for who needs it is not known."""
        self.hold(self._sizes)

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
        if self._uncount(name):
            self._writer.put(Job(self.folder / name))

    def _written(self, name: str, token: object, is_done: bool) -> None:
        if self._writes.get(name) is token:
            del self._writes[name]
            if not is_done:
                self._uncount(name)

    def _count(self, name: str, n_bytes: int) -> None:
        self.n_bytes += n_bytes - self._sizes.get(name, 0)
        self._sizes[name] = n_bytes

    def _uncount(self, name: str) -> bool:
        if name not in self._sizes:
            return False
        self.n_bytes -= self._sizes.pop(name)
        self._writes.pop(name, None)
        return True


def finished(folder: Path, name: re.Pattern[str]) -> tuple[Path, ...]:
    """The files of ``folder`` that are called as ``name`` says, in order; those whose writing was cut off
    are deleted. What has such a name and is no file is told of and left alone, as all else is."""
    found = []
    for path in sorted(folder.iterdir()):
        is_unfinished = _UNFINISHED.fullmatch(path.name) is not None
        if not is_unfinished and not name.fullmatch(path.name):
            continue
        if not stat.S_ISREG(path.lstat().st_mode):
            log.warning("skipping %s in the cache folder: it is no file", path.name)
        elif is_unfinished:
            path.unlink()
        else:
            found.append(path)
    return tuple(found)


PEER = "peer-{}"
MAX_PEERS = 64


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write into a folder; it ends with :meth:`close`, or with the process.

    Attributes:
        root: the cache folder.
        folder: what of it this process writes: the root, or a folder of a peer in it.
    """

    root: Path
    folder: Path
    folder_number: int

    def close(self) -> None:
        """Let the folder go."""
        os.close(self.folder_number)


def claim(root: Path) -> Claim:
    """Make the cache folder ``root`` where it is missing, and keep other processes from writing where this
    one does. The first process writes into the root, a further one into a folder of its own in it; each reads
    what all of them wrote.

    Raises:
        OSError: the folder cannot be used; ``BlockingIOError`` when :data:`MAX_PEERS` processes use it.
    """
    if root == Path():  # as an empty option reads
        raise OSError("the current folder is no cache folder; name one of its own")
    for folder in (root, *(root / PEER.format(i) for i in range(1, MAX_PEERS))):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The folder itself is locked: a file in it could be deleted, and then let a second process in.
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            continue
        except OSError:
            os.close(number)
            raise
        return Claim(root, folder, number)
    raise BlockingIOError(f"{MAX_PEERS} processes write into it already")
