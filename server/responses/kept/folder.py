"""Responses on disk, one file each. Several servers may share a folder: each writes its own part, and finds
the responses of others by id. A deletion is noted where all of them look."""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cache.disk.files import PEER, claim
from server.responses.kept.records import Packed, is_response_id, unpack

log = logging.getLogger("crossturn.responses")

RECORD, DELETED, TEMPORARY = ".response", ".deleted", ".part"
_REMEMBERED_S = 90 * 86400.0
"""How long a deletion stays noted: longer, in practice, than another server keeps an unused response."""


class ResponseFolder:
    """This server's part of a folder.

    Args:
        root: shared with other servers.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, root: Path) -> None:
        self._claim = claim(root)
        self._own = self._claim.folder
        for path in self._own.glob(f"*{TEMPORARY}"):
            path.unlink()
        for path in self._own.glob(f"*{DELETED}"):
            if time.time() - path.stat().st_mtime > _REMEMBERED_S:
                path.unlink()

    def close(self) -> None:
        """Release this part, so that another server can take it."""
        self._claim.close()

    def names(self) -> list[str]:
        """The ids of the responses in this part, least recently used first."""
        paths = sorted(self._own.glob(f"*{RECORD}"), key=lambda path: path.stat().st_mtime_ns)
        return [path.name.removesuffix(RECORD) for path in paths]

    def read(self, name: str) -> Packed | None:
        """A response of this part; a damaged one is deleted."""
        path = self._own / f"{name}{RECORD}"
        try:
            return _read(path, name)
        except (OSError, ValueError, TypeError, KeyError, zlib.error) as error:
            log.warning("a response cannot be read and is dropped: %s: %s", path, error)
            path.unlink(missing_ok=True)
            return None

    def read_others(self, name: str) -> Packed | None:
        """A response that another server wrote."""
        if not is_response_id(name):
            return None
        for folder in self._others():
            with suppress(OSError, ValueError, TypeError, KeyError, zlib.error):
                return _read(folder / f"{name}{RECORD}", name)
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write a response; an error of the disk is logged and fails no request."""
        part = self._own / f"{name}{TEMPORARY}"
        try:
            part.write_bytes(data)
            part.replace(self._own / f"{name}{RECORD}")
        except OSError as error:
            log.warning("a response is kept in memory alone: %s", error)
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def touch(self, name: str) -> None:
        """Mark a response as just used."""
        with suppress(FileNotFoundError):
            os.utime(self._own / f"{name}{RECORD}")

    def remove(self, name: str) -> None:
        """Delete a response of this part."""
        (self._own / f"{name}{RECORD}").unlink(missing_ok=True)

    def note_deleted(self, name: str) -> None:
        """Note that the response is deleted, for the other servers."""
        if any(self._others()):
            with suppress(OSError):
                (self._own / f"{name}{DELETED}").touch()

    def is_deleted(self, name: str) -> bool:
        """Whether a client has deleted the response, on whatever server."""
        return any((folder / f"{name}{DELETED}").exists() for folder in (self._own, *self._others()))

    def _others(self) -> Iterator[Path]:
        root = self._claim.root
        for folder in (root, *sorted(root.glob(PEER.format("*")))):
            if folder != self._own:
                yield folder


def _read(path: Path, name: str) -> Packed:
    record = unpack(path.read_bytes())
    if record.id != name or not is_response_id(name):
        raise ValueError("it is not the response that its name says")
    return Packed.of(record)
