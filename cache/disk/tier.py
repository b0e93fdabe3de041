"""The disk tier: conversations at rest, written behind, found again after a restart.

A conversation is a :class:`~cache.disk.manifest.Manifest` and the files it names; the manifest is written
last, so whatever it names is there. Everything but the writing itself happens on the engine's thread, a
file at a time, so that requests are not kept waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from cache.disk import blob
from cache.disk.blob import DamagedBlobError
from cache.disk.catalogue import Catalogue
from cache.disk.files import Claim, Files
from cache.disk.manifest import Found, Recalled, best_match, describe
from cache.disk.peers import Peers
from cache.disk.writer import Writer
from cache.entry import Entry
from cache.planner import CrossTurnPrefixMetadata, SlotKey, TokenIds
from cache.state import Buffers, StateCodec

log = logging.getLogger("crossturn.cache")

_CATCH_UP_S = 0.01

MANIFESTS, CONTENT = "conversations", "content"


class DiskTier:
    """Owns what one server writes into a cache folder, and reads what others write there.

    Args:
        claim: what :func:`cache.disk.files.claim` gave for the folder; closed with the tier.
        max_bytes: what all files together may hold; the longest unused conversations go first.
        metadata: of the model that serves; conversations of another stay, unread.
        codec: states to arrays and back.
        clock: seconds since 1970.

    Raises:
        OSError: the folder cannot be read.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        max_bytes: int,
        metadata: CrossTurnPrefixMetadata,
        codec: StateCodec,
        clock: Callable[[], float],
    ) -> None:
        folder = claim.folder
        for name in (MANIFESTS, CONTENT):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        self._claim = claim
        self.fingerprint = blake2b(f"{metadata!r} {codec.layout}".encode(), digest_size=16).hexdigest()
        self._codec = codec
        self._clock = clock
        self._writer = Writer()
        self._files = Files(folder / CONTENT, self._writer, max_bytes)
        self._catalogue = Catalogue(folder / MANIFESTS, self._files, self._writer, self.fingerprint)
        self._peers = Peers(claim, MANIFESTS, self.fingerprint, clock)
        self._writes: dict[str, Generator[None, None, None]] = {}
        self._has_told = False
        self._files.scan()
        self._catalogue.scan()
        self._files.delete_unneeded()

    @property
    def n_bytes(self) -> int:
        """Bytes of all content files, those on their way included."""
        self._writer.settle()
        return self._files.n_bytes

    @property
    def n_conversations(self) -> int:
        """Conversations that can be found again."""
        self._writer.settle()
        return len(self._catalogue)

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
        self._writer.settle()
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
        self._claim.close()

    def _write(self, entry: Entry) -> Generator[None, None, None]:
        """Write ``entry``, one file between two yields."""
        self._writer.settle()
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
            self._catalogue.publish(manifest)
        finally:
            self._files.release(names, delete=False)

    def _send(self, name: str, buffers: Buffers, lineage: str) -> bool:
        """Send one file to the disk; False when there is no room for it."""
        n_bytes = sum(array.nbytes for array in buffers.values())
        if not self._make_room(n_bytes, lineage):
            return False
        self._files.write(name, lambda: blob.pack(name, self.fingerprint, {}, buffers), n_bytes)
        return True

    def _make_room(self, n_bytes: int, lineage: str) -> bool:
        """Let the longest unused conversations go until ``n_bytes`` more fit."""
        if self._files.has_room_for(n_bytes):
            return True
        self._files.delete_unneeded()
        for manifest in self._catalogue.by_use():
            if self._files.has_room_for(n_bytes):
                return True
            if manifest.lineage != lineage:
                self.forget(manifest.lineage)
        return self._files.has_room_for(n_bytes)

    # -- forgetting -----------------------------------------------------------------------------

    def forget(self, lineage: str) -> None:
        """Delete a conversation, if it is there."""
        self._catalogue.forget(lineage)

    def forget_slot(self, slot: SlotKey) -> int:
        """Delete the conversations of ``slot``; returns how many."""
        self._writer.settle()
        manifests = self._catalogue.of(slot)
        for manifest in manifests:
            self.forget(manifest.lineage)
        self._files.delete_unneeded()  # what was written of a turn that is not complete
        n_of_peers = sum(1 for _ in self._peers.of(slot))
        try:
            self._peers.forget(slot)
        except OSError as error:
            log.warning("cannot note in the cache folder what is forgotten: %s", error)
        return len(manifests) + n_of_peers

    # -- reading back ---------------------------------------------------------------------------

    def best(self, slot: SlotKey, prompt_ids: TokenIds) -> Found | None:
        """The conversation of ``slot`` that saves ``prompt_ids`` most; one token is left to feed."""
        self._writer.settle()
        self._forget_what_a_peer_forgot(slot)
        own = best_match(self._catalogue.of(slot), prompt_ids)
        for folder, manifest in self._peers.of(slot):
            theirs = best_match((manifest,), prompt_ids)
            if theirs is not None and (own is None or theirs.state.length > own.state.length):
                own = replace(theirs, peer=folder)
        return own

    def _forget_what_a_peer_forgot(self, slot: SlotKey) -> None:
        at = self._peers.forgotten_at(slot)
        for manifest in self._catalogue.of(slot):
            if manifest.saved_unix_s <= at:
                self.forget(manifest.lineage)

    def all_of(self, slot: SlotKey) -> tuple[Found, ...]:
        """Every conversation of ``slot``, whole."""
        self._writer.settle()
        return tuple(Found(m, m.states[-1]) for m in self._catalogue.of(slot))

    def n_bytes_of(self, found: Found) -> int:
        """About what ``found`` takes in memory."""
        if found.peer is not None:
            return sum(_size(found.peer / CONTENT / f.name) for f in found.manifest.rows)
        return self._files.sum_of(f.name for f in found.manifest.rows if f.start < found.state.length)

    def read(self, found: Found) -> Recalled | None:
        """Read ``found`` back up to its state.

        None when a file is damaged, which is told and forgets the conversation, and when the system does
        not let it be read now, which is told once and forgets nothing.
        """
        self._writer.wait()
        manifest = found.manifest
        if found.peer is not None:
            return self._read_of_peer(found, found.peer)
        if manifest not in self._catalogue:
            return None  # its files could not be written after all
        try:
            recalled = self._recalled(found, self._own_content)
        except ValueError as error:
            log.warning("skipping a damaged conversation in the cache folder: %s", error)
            self.forget(manifest.lineage)
            return None
        except OSError as error:
            if not self._has_told:
                log.warning("cannot read the cache folder now: %s", error)
            self._has_told = True
            return None
        self._has_told = False
        self._catalogue.touch(manifest, self._clock())
        return recalled

    def _read_of_peer(self, found: Found, folder: Path) -> Recalled | None:
        """Read what another server wrote, which it may replace or delete meanwhile."""
        try:
            return self._recalled(found, lambda name: self._content(folder / CONTENT / name))
        except (ValueError, OSError) as error:
            log.info("a conversation of another server cannot be read: %s", error)
            return None

    def _recalled(self, found: Found, content: Callable[[str], Buffers]) -> Recalled:
        """``found`` as far as it helps. Raises ValueError for what is damaged, and OSError."""
        manifest, end = found.manifest, found.state.length
        rows = [content(f.name) for f in manifest.rows if f.start < end]
        checkpoints = [
            self._codec.checkpoint(f.length, content(f.name)) for f in manifest.states if f.length <= end
        ]
        state = self._codec.state(checkpoints[-1], rows)
        return Recalled(found, state, tuple(checkpoints[:-1]))

    def _own_content(self, name: str) -> Buffers:
        try:
            return self._content(self._files.folder / name)
        except DamagedBlobError as error:
            self._files.delete(name)
            raise DamagedBlobError(f"{name}: {error}") from error

    def _content(self, path: Path) -> Buffers:
        fingerprint, _, buffers = blob.unpack(path.name, blob.read(path))
        if fingerprint != self.fingerprint:
            raise DamagedBlobError("it belongs to another model")
        return buffers


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
