"""What other servers wrote into the same cache folder: read, never changed."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np

from cache.disk import blob
from cache.disk.files import PEER, Claim
from cache.disk.manifest import Manifest, from_facts
from cache.planner import SlotKey

log = logging.getLogger("crossturn.cache")

FORGOTTEN = "forgotten"
_JUST_NOW_NS = 100_000_000
"""A folder that changed so lately may change again without another time of change."""


class Peers:
    """The conversations of the other servers over one folder.

    A session that moves from one server to another finds its conversation here: to read it back costs
    less than to prefill it. What a session has deleted stays deleted: each server notes it where all the
    others look.

    Args:
        claim: of this server.
        manifests: name of the folder of conversations in each server's folder.
        fingerprint: of what serves; conversations of another are passed over.
        clock: seconds since 1970.
    """

    def __init__(
        self, claim: Claim, manifests: str, fingerprint: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._claim = claim
        self._manifests = manifests
        self._fingerprint = fingerprint
        self._clock = clock
        self._changed_ns: dict[Path, int] = {}  # by folder, when last looked at
        self._known: dict[
            Path, tuple[tuple[int, int], Manifest | None]
        ] = {}  # by file: its stamp, what it says
        self._forgotten: dict[str, float] = {}

    def of(self, slot: SlotKey) -> Iterator[tuple[Path, Manifest]]:
        """Each conversation of ``slot`` that another server wrote, with the folder of that server."""
        self._look()
        forgotten_at = self._forgotten.get(_name_of(slot), 0.0)
        for path, (_, manifest) in self._known.items():
            if manifest is not None and manifest.slot == slot and manifest.saved_unix_s > forgotten_at:
                yield path.parents[1], manifest

    def forget(self, slot: SlotKey) -> None:
        """Let no server bring back what ``slot`` had until now."""
        if not self._folders():
            return
        folder = self._claim.folder / FORGOTTEN
        folder.mkdir(mode=0o700, exist_ok=True)
        now = self._clock()
        blob.write(folder / _name_of(slot), json.dumps({"before_unix_s": now}).encode())
        self._forgotten[_name_of(slot)] = now

    def forgotten_at(self, slot: SlotKey) -> float:
        """When ``slot`` was last deleted by any server, in seconds since 1970; 0 if never."""
        self._look()
        return self._forgotten.get(_name_of(slot), 0.0)

    def _folders(self) -> list[Path]:
        root, own = self._claim.root, self._claim.folder
        return [folder for folder in (root, *sorted(root.glob(PEER.format("*")))) if folder != own]

    def _look(self) -> None:
        """Learn what is new since the last look."""
        others = self._folders()
        for folder in (folder / self._manifests for folder in others):
            if self._has_changed(folder):
                self._look_into(folder)
        for folder in (folder / FORGOTTEN for folder in (self._claim.folder, *others)):
            if self._has_changed(folder):
                for path in _listed(folder):
                    with suppress(OSError, ValueError, KeyError, TypeError):
                        at = float(json.loads(blob.read(path))["before_unix_s"])
                        self._forgotten[path.name] = max(at, self._forgotten.get(path.name, 0.0))

    def _has_changed(self, folder: Path) -> bool:
        try:
            changed_ns = folder.stat().st_mtime_ns
        except OSError:
            changed_ns = 0
        before, self._changed_ns[folder] = self._changed_ns.get(folder, 0), changed_ns
        return changed_ns != before or time.time_ns() - changed_ns < _JUST_NOW_NS

    def _look_into(self, folder: Path) -> None:
        seen = {}
        for path in _listed(folder):
            with suppress(OSError):  # it has gone meanwhile
                found = path.lstat()
                stamp = (found.st_mtime_ns, found.st_ino)
                known = self._known.get(path)
                seen[path] = known if known and known[0] == stamp else (stamp, self._read(path))
        rest = {path: known for path, known in self._known.items() if path.parent != folder}
        self._known = rest | seen

    def _read(self, path: Path) -> Manifest | None:
        try:
            fingerprint, facts, buffers = blob.unpack(path.name, blob.read(path))
            manifest = from_facts(facts, buffers["ids"].astype(np.uint32, copy=False))
        except (ValueError, KeyError, TypeError) as error:
            log.warning("passing over a conversation of another server: %s: %s", path.name, error)
            return None
        return manifest if fingerprint == self._fingerprint else None


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in folder.iterdir() if not path.name.endswith(blob.TEMPORARY)]
    return []


def _name_of(slot: SlotKey) -> str:
    return blake2b(repr(slot).encode(), digest_size=16).hexdigest()
