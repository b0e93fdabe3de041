"""Responses under their ids: whose they are, within how many bytes, and on disk where there is a folder.

A response goes on from another by its id, so records form trees. What is used moves to the safe end of the
line together with all it went on from: a record never goes before those that need it.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from server.responses.records import Packed, Record, unpack

log = logging.getLogger("crossturn.responses")

SUFFIX = ".response"
TEMPORARY = ".part"
_NAME = re.compile(r"resp_[0-9a-f]{32}")


class ResponseStore:
    """Keeps responses. Used by one thread.

    Args:
        max_bytes: what all records may take; the longest unused go first.
        folder: keeps them across restarts as well; None keeps them in memory alone.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, max_bytes: int, folder: Path | None = None) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._folder = folder
        self._records: OrderedDict[str, Packed] = OrderedDict()  # the first goes first
        self._owners: dict[tuple[str | None, str], str] = {}
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._load(folder)

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, record: Record) -> None:
        """Keep ``record``, whose id must be new, if what it went on from is still here."""
        assert record.id not in self._records
        if record.previous is not None and record.previous not in self._records:
            return
        packed = Packed.of(record)
        self._write(record.id, packed.data)
        self._add(record.id, packed)
        self._touch(record.id)
        self._make_room()

    def find(self, tenant: str | None, response_id: str) -> Record | None:
        """The response, unless it is somebody else's, deleted, or gone."""
        packed = self._records.get(response_id)
        if packed is None or packed.tenant != tenant or packed.is_hidden:
            return None
        self._touch(response_id)
        return packed.record()

    def context(self, tenant: str | None, response_id: str) -> list[dict[str, Any]] | None:
        """All items that ``response_id`` was made from, oldest first; None where :meth:`find` finds none."""
        record = self.find(tenant, response_id)
        if record is None:
            return None
        chain = [self._records[name].record() for name in self._line(record.previous)]
        earlier = [item for one in reversed(chain) for item in (*one.items, *one.output)]
        return [*earlier, *record.items]

    def item(self, tenant: str | None, item_id: str) -> dict[str, Any] | None:
        """An item that the server made, by its id; None where its response cannot be found."""
        owner = self._owners.get((tenant, item_id))
        record = None if owner is None else self.find(tenant, owner)
        if record is None:
            return None
        return next(item for item in record.output if item["id"] == item_id)

    def delete(self, tenant: str | None, response_id: str) -> bool:
        """Forget a response; False where :meth:`find` finds none. Those that went on from it stay whole."""
        record = self.find(tenant, response_id)
        if record is None:
            return False
        if not self._records[response_id].n_children:
            self._remove(response_id)
            return True
        hidden = Packed.of(replace(record, is_hidden=True))
        hidden.n_children = self._records[response_id].n_children
        self.n_bytes += hidden.n_bytes - self._records[response_id].n_bytes
        self._records[response_id] = hidden
        self._write(response_id, hidden.data)
        return True

    def _line(self, response_id: str | None) -> Iterator[str]:
        """``response_id`` and all it went on from, newest first."""
        while response_id is not None:
            yield response_id
            response_id = self._records[response_id].previous

    def _touch(self, response_id: str) -> None:
        for name in list(self._line(response_id)):
            self._records.move_to_end(name)
            if self._folder is not None:
                with suppress(FileNotFoundError):
                    os.utime(self._path(name))

    def _add(self, name: str, packed: Packed) -> None:
        self._records[name] = packed
        self.n_bytes += packed.n_bytes
        for item_id in packed.item_ids:
            self._owners[packed.tenant, item_id] = name
        if packed.previous is not None:
            self._records[packed.previous].n_children += 1

    def _make_room(self) -> None:
        while self.n_bytes > self.max_bytes:
            self._remove(next(iter(self._records)))

    def _remove(self, name: str) -> None:
        packed = self._records.pop(name)
        assert not packed.n_children, "a record goes after those that need it"
        self.n_bytes -= packed.n_bytes
        for item_id in packed.item_ids:
            self._owners.pop((packed.tenant, item_id), None)
        if self._folder is not None:
            self._path(name).unlink(missing_ok=True)
        if packed.previous is not None:
            parent = self._records[packed.previous]
            parent.n_children -= 1
            if parent.is_hidden and not parent.n_children:
                self._remove(packed.previous)

    # -- the folder -----------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}{SUFFIX}"

    def _write(self, name: str, data: bytes) -> None:
        if self._folder is None:
            return
        part = self._folder / f"{name}{TEMPORARY}"
        try:
            part.write_bytes(data)
            part.replace(self._path(name))
        except OSError as error:  # a full disk takes nothing from those who are answered
            log.warning("a response is kept in memory alone: %s", error)
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _load(self, folder: Path) -> None:
        """Learn what the folder holds; what is damaged, or went on from what is gone, is deleted."""
        for part in folder.glob(f"*{TEMPORARY}"):
            part.unlink()
        found: dict[str, Packed] = {}
        by_age = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        for path in by_age:
            name = path.name.removesuffix(SUFFIX)
            packed = _read(path, name)
            if packed is not None:
                found[name] = packed
        for name in _parents_first(found):
            self._add(name, found.pop(name))
        for name in found:
            log.warning("a response is dropped, for what it went on from is gone: %s", name)
            self._path(name).unlink()
        for path in by_age:
            name = path.name.removesuffix(SUFFIX)
            if name in self._records:
                for ancestor in list(self._line(name)):
                    self._records.move_to_end(ancestor)
        self._make_room()


def _read(path: Path, name: str) -> Packed | None:
    try:
        record = unpack(path.read_bytes())
        if record.id != name or not _NAME.fullmatch(name):
            raise ValueError("it is not the response that its name says")
        return Packed.of(record)
    except (OSError, ValueError, TypeError, KeyError, zlib.error) as error:
        log.warning("a response cannot be read and is dropped: %s: %s", path, error)
        path.unlink(missing_ok=True)
        return None


def _parents_first(found: dict[str, Packed]) -> list[str]:
    """The names whose whole line is there, each behind the one it went on from."""
    ordered: dict[str, None] = {}
    for name in found:
        line: list[str] = []
        step: str | None = name
        while step is not None and step in found and step not in ordered and step not in line:
            line.append(step)
            step = found[step].previous
        if step is None or step in ordered:
            ordered.update(dict.fromkeys(reversed(line)))
    return list(ordered)
