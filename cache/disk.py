"""The disk tier: conversations at rest, written behind, found again after a restart.

A conversation is a :class:`~cache.manifest.Manifest` and the files it names; the manifest is written
last, so whatever it names is there. Everything but the writing itself happens on the engine's thread, a
file at a time, so that requests are not kept waiting.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import IO

import numpy as np

from cache import blob
from cache.blob import DamagedBlobError
from cache.codec import Buffers, StateCodec
from cache.entry import Entry
from cache.files import Files, finished
from cache.manifest import Found, Manifest, best_match, describe, from_facts, to_facts
from cache.planner import CrossTurnPrefixMetadata, CrossTurnSlotId, TokenIds
from cache.recalled import Recalled
from cache.writer import Job, Writer

log = logging.getLogger("crossturn.cache")

_CATCH_UP_S = 0.01

MANIFESTS, CONTENT = "conversations", "content"

_NAME = re.compile(r"[0-9a-f]{32}")


class DiskTier:
    """Owns one cache folder.

    Args:
        folder: the place; one process at a time may use it.
        in_use: what :func:`cache.files.claim` gave for it; closed with the tier.
        max_bytes: what all files together may hold; the longest unused conversations go first.
        metadata: of the model that serves; conversations of another stay, unread.
        codec: states to arrays and back.
        clock: seconds since 1970.

    Raises:
        OSError: the folder cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        in_use: IO[str],
        max_bytes: int,
        metadata: CrossTurnPrefixMetadata,
        codec: StateCodec,
        clock: Callable[[], float],
    ) -> None:
        for name in (MANIFESTS, CONTENT):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        self._in_use = in_use
        self.fingerprint = blake2b(f"{metadata!r} {codec.layout}".encode(), digest_size=16).hexdigest()
        self._folder = folder
        self._codec = codec
        self._clock = clock
        self._writer = Writer()
        self._files = Files(folder / CONTENT, self._writer, max_bytes)
        self._manifests: dict[str, Manifest] = {}
        self._foreign: dict[str, Manifest] = {}
        self._writes: dict[str, Generator[None, None, None]] = {}
        self._scan()

    @property
    def n_bytes(self) -> int:
        """Bytes of all content files, those on their way included."""
        return self._files.n_bytes

    @property
    def n_conversations(self) -> int:
        """Conversations that can be found again."""
        return len(self._manifests)

    # -- writing behind -------------------------------------------------------------------------

    def want(self, entry: Entry) -> None:
        """Begin to write ``entry``, which must stay as it is until :meth:`withdraw`."""
        self._writes[entry.lineage] = self._write(entry)

    def withdraw(self, entry: Entry) -> None:
        """``entry`` is about to change: stop writing it. What was written before stays valid."""
        write = self._writes.pop(entry.lineage, None)
        if write is not None:
            write.close()

    def finish(self, entry: Entry) -> None:
        """Write what is missing of ``entry`` now, for it is about to go from memory."""
        write = self._writes.pop(entry.lineage, None)
        if write is not None:
            for _ in write:
                if self._files.is_congested:
                    write.close()

    @property
    def is_behind(self) -> bool:
        """Whether something that is wanted has not been sent yet."""
        return len(self._writes) > 0

    def step(self) -> bool:
        """Send one more file to the disk, or give it a moment to catch up; False when all is sent."""
        if not self._writes:
            return False
        if self._files.is_congested:
            time.sleep(_CATCH_UP_S)
            return True
        lineage, write = next(iter(self._writes.items()))
        if next(write, self) is self:
            del self._writes[lineage]
        return True

    def flush(self) -> None:
        """Write all that is wanted, and return when it is on the disk."""
        while self._writes:
            self._writer.wait()
            self.step()
        self._writer.wait()

    def close(self, within_s: float = 5.0) -> None:
        """Write what is wanted, as far as that goes within ``within_s`` seconds; let the folder go."""
        until = time.monotonic() + within_s
        while time.monotonic() < until and self.step():
            pass
        self._writer.close()
        self._in_use.close()

    def _write(self, entry: Entry) -> Generator[None, None, None]:
        """Write ``entry``, one file between two yields."""
        manifest = describe(entry, self.fingerprint, self._files, self._clock())
        names = manifest.file_names
        self._files.hold(names)
        try:
            for rows in manifest.rows:
                if rows.name not in self._files:
                    buffers = self._codec.rows(entry.state, rows.start, rows.end)
                    if not self._send(rows.name, buffers, entry.lineage):
                        return
                    yield
            for state in manifest.states:
                if state.name not in self._files:
                    at_end = state.length == len(entry)
                    if not at_end and state.length not in entry.ring.lengths:
                        return  # its file was found damaged after the checkpoint had been evicted
                    checkpoint = entry.state.snapshot() if at_end else entry.ring.at(state.length)
                    if not self._send(state.name, self._codec.recurrent(checkpoint), entry.lineage):
                        return
                    yield
            self._publish(manifest)
        finally:
            self._files.release(names, delete=False)

    def _send(self, name: str, buffers: Buffers, lineage: str) -> bool:
        """Send one file to the disk; False when there is no room for it."""
        n_bytes = sum(array.nbytes for array in buffers.values())
        if not self._make_room(n_bytes, lineage):
            return False
        path = self._files.folder / name
        self._files.write(Job(path, lambda: blob.pack(self.fingerprint, {}, buffers), n_bytes))
        return True

    def _publish(self, manifest: Manifest) -> None:
        """Name the conversation's files on the disk, in place of those of its last turn."""
        self._files.hold(manifest.file_names)
        content = {"ids": manifest.ids}
        facts = to_facts(manifest)
        self._writer.put(
            Job(
                self._path(manifest.lineage),
                lambda: blob.pack(self.fingerprint, facts, content),
                needs=manifest.file_names,
            )
        )
        old = self._manifests.get(manifest.lineage)
        self._manifests[manifest.lineage] = manifest
        if old is not None:
            self._files.release(old.file_names)

    def _make_room(self, n_bytes: int, lineage: str) -> bool:
        """Let the longest unused conversations go until ``n_bytes`` more fit."""
        if self._files.n_bytes + n_bytes <= self._files.max_bytes:
            return True
        self._files.delete_unneeded()
        everyone = (*self._manifests.values(), *self._foreign.values())
        for manifest in sorted(everyone, key=lambda m: m.saved_unix_s):
            if self._files.n_bytes + n_bytes <= self._files.max_bytes:
                return True
            if manifest.lineage != lineage:
                self.forget(manifest.lineage)
        return self._files.n_bytes + n_bytes <= self._files.max_bytes

    # -- forgetting -----------------------------------------------------------------------------

    def forget(self, lineage: str) -> None:
        """Delete a conversation, if it is there."""
        manifest = self._manifests.pop(lineage, None) or self._foreign.pop(lineage, None)
        if manifest is not None:
            self._writer.put(Job(self._path(lineage)))
            self._files.release(manifest.file_names)

    def forget_slot(self, slot: CrossTurnSlotId) -> int:
        """Delete the conversations of ``slot``; returns how many."""
        lineages = [m.lineage for m in self._manifests.values() if m.slot == slot]
        for lineage in lineages:
            self.forget(lineage)
        self._files.delete_unneeded()  # what was written of a turn that is not complete
        return len(lineages)

    # -- reading back ---------------------------------------------------------------------------

    def best(self, slot: CrossTurnSlotId, prompt_ids: TokenIds) -> Found | None:
        """The conversation of ``slot`` that saves ``prompt_ids`` most; one token is left to feed."""
        return best_match((m for m in self._manifests.values() if m.slot == slot), prompt_ids)

    def all_of(self, slot: CrossTurnSlotId) -> tuple[Found, ...]:
        """Every conversation of ``slot``, whole."""
        return tuple(Found(m, m.states[-1]) for m in self._manifests.values() if m.slot == slot)

    def n_bytes_of(self, found: Found) -> int:
        """About what ``found`` takes in memory."""
        return self._files.sum_of(f.name for f in found.manifest.rows if f.start < found.state.length)

    def read(self, found: Found) -> Recalled | None:
        """Read ``found`` back up to its state; None when a file is damaged, which is told once and
        forgets the conversation."""
        self._writer.wait()
        manifest, end = found.manifest, found.state.length
        try:
            rows = [self._content(f.name) for f in manifest.rows if f.start < end]
            checkpoints = [
                self._codec.checkpoint(f.length, self._content(f.name))
                for f in manifest.states
                if f.length <= end
            ]
            state = self._codec.state(checkpoints[-1], rows)
        except (OSError, ValueError) as error:
            log.warning("skipping a damaged conversation in the cache folder: %s", error)
            self.forget(manifest.lineage)
            return None
        self._manifests[manifest.lineage] = replace(manifest, saved_unix_s=self._clock())
        return Recalled(found, state, tuple(checkpoints[:-1]))

    def _content(self, name: str) -> Buffers:
        try:
            fingerprint, _, buffers = blob.unpack((self._files.folder / name).read_bytes())
            if fingerprint != self.fingerprint:
                raise DamagedBlobError("it belongs to another model")
        except DamagedBlobError as error:
            self._files.delete(name)
            raise DamagedBlobError(f"{name}: {error}") from error
        return buffers

    # -- starting -------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Learn what the folder holds, and clear away what a sudden end left behind. Files that are not
        named as ours are not ours."""
        self._files.scan()
        for path in finished(self._folder / MANIFESTS):
            if _NAME.fullmatch(path.name):
                self._adopt(path)
        self._files.delete_unneeded()
        if self._foreign:
            log.warning("skipping %d conversations of another model in the cache folder", len(self._foreign))

    def _adopt(self, path: Path) -> None:
        try:
            fingerprint, facts, buffers = blob.unpack(path.read_bytes())
            manifest = from_facts(facts, buffers["ids"].astype(np.uint32, copy=False))
            if manifest.lineage != path.name:
                raise DamagedBlobError("it has another name inside")
            if missing := [name for name in manifest.file_names if name not in self._files]:
                raise DamagedBlobError(f"{missing[0]} is missing")
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("skipping a damaged conversation in the cache folder: %s: %s", path.name, error)
            os.unlink(path)
            return
        ours = fingerprint == self.fingerprint
        (self._manifests if ours else self._foreign)[manifest.lineage] = manifest
        self._files.hold(manifest.file_names)

    def _path(self, lineage: str) -> Path:
        return self._folder / MANIFESTS / lineage
