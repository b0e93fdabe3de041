"""Responses by their ids: each belongs to a tenant, all are within a budget, and on disk if there is a
folder.

A response continues another one by its id, so records form trees. Using a record makes it and all that it
continues the most recently used: a record is never evicted before those that need it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from model.errors import ModelError
from server.responses.kept.folder import ResponseFolder
from server.responses.kept.records import Packed, Record, response_of
from server.responses.kept.seal import Seal, seal_key
from server.settings import Settings

log = logging.getLogger("crossturn.responses")
FOLDER = "responses"
"""Within the cache folder."""


class ResponseStore:
    """Keeps responses. Used by one thread.

    Args:
        max_bytes: of all records; the least recently used are evicted first.
        root: a folder that keeps them across restarts; None for memory only.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, max_bytes: int, root: Path | None = None) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._records: OrderedDict[str, Packed] = OrderedDict()  # the first goes first
        self._folder = None if root is None else ResponseFolder(root)
        if self._folder is not None:
            self._load(self._folder)

    def __len__(self) -> int:
        return len(self._records)

    def close(self) -> None:
        """Release the folder."""
        if self._folder is not None:
            self._folder.close()

    def keep(self, record: Record) -> None:
        """Keep ``record``, whose id must be new, unless what it continues is gone."""
        assert record.id not in self._records
        if record.previous is None or record.previous in self._records:
            self._take_in(record.id, Packed.of(record))
            self._make_room()

    def find(self, tenant: str | None, response_id: str) -> Record | None:
        """The response; None if it is another tenant's, deleted, or evicted."""
        if response_id not in self._records and not self._adopt(tenant, response_id):
            return None
        packed = self._records[response_id]
        if packed.tenant != tenant or packed.is_hidden:
            return None
        if self._folder is not None and self._folder.is_deleted(response_id):
            return None
        self._touch(response_id)
        return packed.record()

    def context(self, tenant: str | None, response_id: str) -> list[dict[str, Any]] | None:
        """All items that ``response_id`` was made from, oldest first; None where :meth:`find` returns
        None."""
        record = self.find(tenant, response_id)
        if record is None:
            return None
        chain = [self._records[name].record() for name in self._line(record.previous)]
        earlier = [item for one in reversed(chain) for item in (*one.items, *one.output)]
        return [*earlier, *record.items]

    def item(self, tenant: str | None, item_id: str) -> dict[str, Any] | None:
        """A generated item by its id; None if its response cannot be found."""
        owner = response_of(item_id)
        record = None if owner is None else self.find(tenant, owner)
        output = () if record is None else record.output
        return next((item for item in output if item["id"] == item_id), None)

    def delete(self, tenant: str | None, response_id: str) -> bool:
        """Delete a response; False where :meth:`find` returns None. Responses that continue it stay
        complete."""
        record = self.find(tenant, response_id)
        if record is None:
            return False
        if self._folder is not None:
            self._folder.note_deleted(response_id)
        if self._records[response_id].n_children:
            self._hide(record)
        else:
            self._remove(response_id)
        return True

    def _hide(self, record: Record) -> None:
        hidden, shown = Packed.of(replace(record, is_hidden=True)), self._records[record.id]
        hidden.n_children = shown.n_children
        self.n_bytes += hidden.n_bytes - shown.n_bytes
        self._records[record.id] = hidden
        if self._folder is not None:
            self._folder.write(record.id, hidden.data)

    def _line(self, response_id: str | None) -> Iterator[str]:
        """``response_id`` and all that it continues, newest first."""
        while response_id is not None:
            yield response_id
            response_id = self._records[response_id].previous

    def _touch(self, response_id: str) -> None:
        for name in list(self._line(response_id)):
            self._records.move_to_end(name)
            if self._folder is not None:
                self._folder.touch(name)

    def _take_in(self, name: str, packed: Packed) -> None:
        if self._folder is not None:
            self._folder.write(name, packed.data)
        self._add(name, packed)
        self._touch(name)

    def _add(self, name: str, packed: Packed) -> None:
        self._records[name] = packed
        self.n_bytes += packed.n_bytes
        if packed.previous is not None:
            self._records[packed.previous].n_children += 1

    def _make_room(self) -> None:
        while self.n_bytes > self.max_bytes:
            self._remove(next(iter(self._records)))

    def _remove(self, name: str) -> None:
        packed = self._records.pop(name)
        assert not packed.n_children, "a record goes after those that need it"
        self.n_bytes -= packed.n_bytes
        if self._folder is not None:
            self._folder.remove(name)
        if packed.previous is not None:
            parent = self._records[packed.previous]
            parent.n_children -= 1
            if parent.is_hidden and not parent.n_children:
                self._remove(packed.previous)

    def _adopt(self, tenant: str | None, response_id: str) -> bool:
        """Take over a response of another server on the same folder, with all that it continues."""
        if self._folder is None:
            return False
        line: dict[str, Packed] = {}
        step: str | None = response_id
        while step is not None and step not in self._records:
            packed = None if step in line else self._folder.read_others(step)
            if packed is None or packed.tenant != tenant:
                return False
            line[step] = packed
            step = packed.previous
        for name in reversed(line):
            self._take_in(name, line[name])
        self._make_room()
        return response_id in self._records

    def _load(self, folder: ResponseFolder) -> None:
        """Learn what the folder holds; what went on from something that is gone is deleted."""
        found = {name: packed for name in folder.names() if (packed := folder.read(name)) is not None}
        whole = _parents_first(found)
        for name in whole:
            self._add(name, found[name])
        for name in found.keys() - set(whole):
            log.warning("a response is dropped, for what it went on from is gone: %s", name)
            folder.remove(name)
        for name in found:
            if name in self._records:
                for ancestor in list(self._line(name)):
                    self._records.move_to_end(ancestor)
        self._make_room()


def _parents_first(found: dict[str, Packed]) -> list[str]:
    """The names whose whole line is there, each after the one that it continues."""
    ordered: dict[str, None] = {}
    for name in found:
        line: dict[str, None] = {}
        step: str | None = name
        while step is not None and step in found and step not in ordered and step not in line:
            line[step] = None
            step = found[step].previous
        if step is None or step in ordered:
            ordered.update(dict.fromkeys(reversed(line)))
    return list(ordered)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Responses and the seal of thoughts. Used only by the worker thread."""

    store: ResponseStore
    seal: Seal


def open_shelf(settings: Settings) -> Shelf:
    """The shelf in the cache folder if there is one, or else in memory.

    Raises:
        ModelError: the folder cannot be used.
    """
    folder = None if settings.cache_dir is None else settings.cache_dir / FOLDER
    try:
        return Shelf(ResponseStore(settings.response_store, folder), Seal(seal_key(folder)))
    except OSError as error:
        raise ModelError(f"the cache folder {settings.cache_dir} cannot be used: {error}") from error
