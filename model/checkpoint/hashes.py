"""Remembers the hashes of large files, so that a start does not read a checkpoint twice."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from model.checkpoint.fingerprint import hash_files

_log = logging.getLogger("crossturn.model")

_MOST_ENTRIES = 64


class HashMemory:
    """What :func:`~model.checkpoint.fingerprint.hash_files` gave for files that have not changed since.

    Files are known by their path, size, times of change and inode, which is what ``git`` and ``make`` trust.

    Args:
        file: where it is kept, a small JSON object; made when needed. If it cannot be read or written, that
            costs the time of hashing and nothing else.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def hash_files(self, paths: Iterable[Path]) -> int:
        """The same number as without a memory."""
        files = sorted(paths)
        key = _state_of(files)
        known = self._read()
        if (found := known.get(key)) is not None:
            return int(found, 16)
        result = hash_files(files)
        if _state_of(files) == key:  # nobody wrote to them meanwhile
            self._write(known | {key: f"{result:016x}"})
        return result

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
            return {str(key): value for key, value in known.items() if int(value, 16) < 2**64}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            _log.warning("%s is not used: %s", self._file, error)
            return {}

    def _write(self, known: dict[str, str]) -> None:
        newest = dict(list(known.items())[-_MOST_ENTRIES:])
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            part.write_text(json.dumps(newest, indent=0), encoding="utf-8")
            part.replace(self._file)
        except OSError as error:
            _log.warning("the weights' hash is not remembered: %s", error)


def _state_of(files: list[Path]) -> str:
    """Changes whenever one of the files does."""
    stats = [(str(file.resolve()), file.stat()) for file in files]
    state = [(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in stats]
    return hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()
