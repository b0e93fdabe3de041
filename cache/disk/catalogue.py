"""Which conversations the cache folder names, and which of their versions is believed."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from cache.disk import blob
from cache.disk.blob import DamagedBlobError
from cache.disk.files import Files, finished
from cache.disk.manifest import Manifest, from_facts, to_facts
from cache.disk.writer import Job, Writer
from cache.planner import SlotKey

log = logging.getLogger("crossturn.cache")

_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(eq=False, slots=True)
class Version:
    """A conversation as it was saved once."""

    manifest: Manifest


class Catalogue:
    """The manifests of a folder.

    A conversation has one version or, while a newer one is on its way to the disk, several. The files of
    the older ones are kept until the newer one is there: a disk that is full loses what it cannot take,
    not what it has.

    Args:
        fingerprint: of what serves; conversations of another stay, unread.
    """

    def __init__(self, folder: Path, files: Files, writer: Writer, fingerprint: str) -> None:
        self._folder = folder
        self._files = files
        self._writer = writer
        self._fingerprint = fingerprint
        self._versions: dict[str, list[Version]] = {}
        self._foreign: dict[str, Manifest] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[Manifest]:
        """The conversations that can be found again, as they were saved last."""
        return (versions[-1].manifest for versions in self._versions.values())

    def __contains__(self, manifest: object) -> bool:
        return any(manifest is known for known in self)

    def of(self, slot: SlotKey) -> tuple[Manifest, ...]:
        """The conversations of ``slot``."""
        return tuple(manifest for manifest in self if manifest.slot == slot)

    def by_use(self) -> list[Manifest]:
        """All conversations, those of other models too, the longest unused first."""
        return sorted((*self, *self._foreign.values()), key=lambda manifest: manifest.saved_unix_s)

    def publish(self, manifest: Manifest) -> None:
        """Name a conversation's files, which were sent before, in place of those of its last turn."""
        self._files.hold(manifest.file_names)
        version = Version(manifest)
        self._versions.setdefault(manifest.lineage, []).append(version)
        name, facts, content = manifest.lineage, to_facts(manifest), {"ids": manifest.ids}
        self._writer.put(
            Job(
                self._folder / name,
                lambda: blob.pack(name, self._fingerprint, facts, content),
                needs=manifest.file_names,
                done=partial(self._published, manifest.lineage, version),
            )
        )

    def touch(self, manifest: Manifest, now_unix_s: float) -> None:
        """``manifest`` has been used."""
        self._versions[manifest.lineage][-1].manifest = replace(manifest, saved_unix_s=now_unix_s)

    def forget(self, lineage: str) -> None:
        """Delete a conversation, if it is there."""
        versions = self._versions.pop(lineage, [])
        foreign = self._foreign.pop(lineage, None)
        if versions or foreign is not None:
            self._writer.put(Job(self._folder / lineage))
        for manifest in [v.manifest for v in versions] if foreign is None else [foreign]:
            self._files.release(manifest.file_names)

    def scan(self) -> None:
        """Learn what the folder names. Only what is proven to be damaged is deleted."""
        n_unread = sum(not self._adopt(path) for path in finished(self._folder, _NAME))
        if n_unread:
            log.warning("%d conversations in the cache folder cannot be read now", n_unread)
            self._files.hold_all()
        if self._foreign:
            log.warning("skipping %d conversations of another model in the cache folder", len(self._foreign))

    def _adopt(self, path: Path) -> bool:
        """Take one manifest in, or delete it; False when it cannot be read now."""
        try:
            fingerprint, facts, buffers = blob.unpack(path.name, blob.read(path))
            manifest = from_facts(facts, buffers["ids"].astype(np.uint32, copy=False))
            if manifest.lineage != path.name:
                raise DamagedBlobError("it has another name inside")
            if missing := [name for name in manifest.file_names if name not in self._files]:
                raise DamagedBlobError(f"{missing[0]} is missing")
        except (ValueError, KeyError, TypeError) as error:
            log.warning("skipping a damaged conversation in the cache folder: %s: %s", path.name, error)
            path.unlink(missing_ok=True)
            return True
        except OSError:
            return False
        if fingerprint == self._fingerprint:
            self._versions[manifest.lineage] = [Version(manifest)]
        else:
            self._foreign[manifest.lineage] = manifest
        self._files.hold(manifest.file_names)
        return True

    def _published(self, lineage: str, version: Version, is_done: bool) -> None:
        """``version`` is on the disk, or could not be written."""
        versions = self._versions.get(lineage, [])
        if version not in versions:
            return  # forgotten meanwhile
        index = versions.index(version)
        superseded = versions[:index] if is_done else [version]
        kept = [v for v in versions if v not in superseded]
        if kept:
            self._versions[lineage] = kept
        else:
            del self._versions[lineage]
        for old in superseded:
            self._files.release(old.manifest.file_names)
