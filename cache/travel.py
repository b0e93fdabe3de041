"""A conversation that travels: one file with all it needs to go on at another server of the same model.

The file is a tar archive, so that it is written and read member by member. Its first member,
``crossturn.json``, says what must agree; ``conversations/`` hold ids and what is known of them, ``content/``
KV rows and recurrent states as the cache folder keeps them: safetensors, each under its digest, named by the
ids that it stands for. No tenant and no slot is named inside: whoever takes the file in decides whose it is.
"""

from __future__ import annotations

import json
import tarfile
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from hashlib import blake2b
from typing import IO, Any

import numpy as np

from cache.disk import blob
from cache.disk.manifest import Manifest, describe, from_facts, name_files, to_facts
from cache.entry import Entry, new_lineage
from cache.planner import CrossTurnPrefixMetadata, CrossTurnSlotId, SlotKey, TokenBuffer
from cache.ring import CheckpointRing, RingLimits
from cache.state import Buffers, StateCodec

HEADER = "crossturn.json"
FORMAT = "crossturn conversation 1"
NOBODY = SlotKey(None, CrossTurnSlotId.DEFAULT)
"""The slot that a file names: none."""

_RECORD = 512  # of a tar archive


class DamagedParcelError(ValueError):
    """The file is cut, changed, or no file of this kind; the message says in what way."""


class ForeignParcelError(ValueError):
    """The file belongs to another model or device.

    Attributes:
        field: of :class:`~cache.planner.CrossTurnPrefixMetadata`, the first that differs.
    """

    def __init__(self, field: str, theirs: object, ours: object) -> None:
        super().__init__(f"its {field} is {theirs}, this server's is {ours}")
        self.field = field


class Departure:
    """A file on its way out, a piece at a time. It reads entries at rest between the steps of the engine; one
    that is about to go on is read to its end first (:meth:`hurry`).

    Args:
        entries: what travels, at rest.
        metadata: of the model that serves.
        codec: states to arrays.
        without: names of content that the other side has.
    """

    def __init__(
        self,
        entries: Collection[Entry],
        metadata: CrossTurnPrefixMetadata,
        codec: StateCodec,
        without: Collection[str] = (),
    ) -> None:
        self._codec = codec
        self._fingerprint = fingerprint_of(metadata, codec.layout)
        self._pieces: deque[tuple[Entry | None, Callable[[], bytes]]] = deque()
        self._members: list[str] = []
        self._names: dict[str, None] = {}
        left_out = frozenset(without)
        for entry in entries:
            self._plan(entry, left_out)
        header = {
            "format": FORMAT,
            "metadata": _metadata_facts(metadata),
            "layout": codec.layout,
            "members": self._members,
        }
        self._pieces.appendleft((None, lambda: _member(HEADER, json.dumps(header).encode())))
        self._pieces.append((None, lambda: bytes(2 * _RECORD)))
        self.n_tokens = sum(len(entry) for entry in entries)

    @property
    def content_names(self) -> list[str]:
        """The content of all entries, in the order of the file."""
        return list(self._names)

    def read(self) -> bytes | None:
        """The next piece; None after the last."""
        return self._pieces.popleft()[1]() if self._pieces else None

    def hurry(self, entry: Entry) -> None:
        """``entry`` is about to change: read now what is still to be read of it."""
        for i, (of, piece) in enumerate(self._pieces):
            if of is entry:
                content = piece()
                self._pieces[i] = (None, lambda content=content: content)  # type: ignore[misc]

    def _plan(self, entry: Entry, without: frozenset[str]) -> None:
        manifest = _whole(entry, self._fingerprint)
        facts, ids = to_facts(manifest), {"ids": manifest.ids}
        name = f"conversations/{manifest.lineage}"
        self._put(None, name, partial(blob.pack, name, self._fingerprint, facts, ids))
        for content, make in contents(entry, self._fingerprint, self._codec).items():
            if content not in self._names and content not in without:
                self._put(entry, f"content/{content}", make)
            self._names[content] = None

    def _put(self, entry: Entry | None, name: str, make: Callable[[], bytes]) -> None:
        self._members.append(name)
        self._pieces.append((entry, lambda: _member(name, make())))


@dataclass(frozen=True, slots=True)
class Traveller:
    """One conversation out of a file, its arrays verified but not made a state yet."""

    manifest: Manifest
    rows: tuple[Buffers, ...]
    states: tuple[tuple[int, Buffers], ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of its arrays."""
        buffers = [*self.rows, *(arrays for _, arrays in self.states)]
        return sum(array.nbytes for arrays in buffers for array in arrays.values())

    def as_entry(
        self,
        number: int,
        now_s: float,
        *,
        slot: SlotKey,
        metadata: CrossTurnPrefixMetadata,
        limits: RingLimits,
        codec: StateCodec,
    ) -> Entry:
        """The entry to put to rest in ``slot``.

        Raises:
            DamagedParcelError: the arrays are not those of this model.
        """
        manifest = self.manifest
        try:
            *checkpoints, end = (codec.checkpoint(length, arrays) for length, arrays in self.states)
            state = codec.state(end, self.rows)
        except ValueError as error:
            raise DamagedParcelError(str(error)) from error
        return Entry(
            number=number,
            lineage=new_lineage(),
            slot=slot,
            metadata=metadata,
            ids=TokenBuffer(manifest.ids),
            ring=CheckpointRing(limits, checkpoints),
            keep=frozenset(manifest.keep),
            shape=manifest.shape,
            created_at=now_s,
            n_hits=0,
            state=state,
            used_at=now_s,
        )


def unpack(
    file: IO[bytes],
    metadata: CrossTurnPrefixMetadata,
    layout: str,
    known: Callable[[Collection[str]], Mapping[str, bytes]] = lambda _names: {},
) -> tuple[Traveller, ...]:
    """Read a whole file and verify all of it: it is taken whole or not at all.

    Args:
        file: as :class:`Departure` wrote it.
        metadata: of the model that serves.
        layout: of the serving codec.
        known: gives content that the file leaves out, by name, as far as it is here.

    Raises:
        DamagedParcelError: something of it is not what was written, or is missing.
        ForeignParcelError: another model wrote it.
    """
    fingerprint = fingerprint_of(metadata, layout)
    members = dict(_members(file))
    _check_header(members.pop(HEADER, b""), metadata, layout, list(members))
    manifests = [
        _manifest(*_unpacked(name, packed, fingerprint), fingerprint)
        for name, packed in members.items()
        if name.startswith("conversations/")
    ]
    if not manifests:
        raise DamagedParcelError("it holds no conversation")
    packed = {name.removeprefix("content/"): content for name, content in members.items()}
    needed = frozenset[str]().union(*(manifest.file_names for manifest in manifests))
    packed |= known([name for name in needed if name not in packed])
    if missing := sorted(name for name in needed if name not in packed):
        raise DamagedParcelError(f"{missing[0]} is missing")
    arrays = {name: _unpacked(name, packed[name], fingerprint)[1] for name in needed}
    return tuple(
        Traveller(
            manifest,
            tuple(arrays[part.name] for part in manifest.rows),
            tuple((part.length, arrays[part.name]) for part in manifest.states),
        )
        for manifest in manifests
    )


def contents(entry: Entry, fingerprint: str, codec: StateCodec) -> dict[str, Callable[[], bytes]]:
    """What makes each file of ``entry``, by its name; to be called before the entry changes.

    Args:
        fingerprint: see :func:`fingerprint_of`.
    """

    def packed(name: str, make: Callable[[], Buffers]) -> bytes:
        return blob.pack(name, fingerprint, {}, make())

    manifest = _whole(entry, fingerprint)
    checkpoints = {c.length: c for c in (*entry.ring.checkpoints, entry.state.snapshot())}
    rows = {
        part.name: partial(packed, part.name, partial(codec.rows, entry.state, part.start, part.end))
        for part in manifest.rows
    }
    states = {
        part.name: partial(packed, part.name, partial(codec.recurrent, checkpoints[part.length]))
        for part in manifest.states
    }
    return {**rows, **states}


def complete_contents(file: IO[bytes], fingerprint: str) -> Iterator[tuple[str, bytes]]:
    """The sound content of a file that may be cut: what of it need not be sent again."""
    with suppress(DamagedParcelError):
        for name, packed in _members(file):
            _, is_content, own = name.rpartition("content/")
            if is_content:
                _unpacked(own, packed, fingerprint)
                yield own, packed


def _whole(entry: Entry, fingerprint: str) -> Manifest:
    """What there is of ``entry``, with names that say nothing of whose it is."""
    return describe(replace(entry, slot=NOBODY), fingerprint, _Everything(), 0.0)


class _Everything:
    """Every name counts as there."""

    def __contains__(self, _name: object) -> bool:
        return True


def fingerprint_of(metadata: CrossTurnPrefixMetadata, layout: str) -> str:
    """Stands for all that must agree for content to mean anything."""
    facts = json.dumps([_metadata_facts(metadata), layout], sort_keys=True)
    return blake2b(facts.encode(), digest_size=16).hexdigest()


def _metadata_facts(metadata: CrossTurnPrefixMetadata) -> dict[str, Any]:
    """``metadata`` as JSON; 64 bits go as text, for JSON's numbers hold 53."""
    facts = asdict(metadata)
    facts["adapter_id"] = metadata.adapter_id.value
    return {
        name: f"{value:016x}" if isinstance(value, int) and value >= 2**32 else value
        for name, value in facts.items()
    }


def _check_header(
    packed: bytes, metadata: CrossTurnPrefixMetadata, layout: str, members: Sequence[str]
) -> None:
    try:
        header = json.loads(packed)
        theirs: Mapping[str, Any] = header["metadata"]
        format_, their_layout, announced = header["format"], header["layout"], header["members"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedParcelError("it has no header, or no such file") from error
    if format_ != FORMAT:
        raise ForeignParcelError("format", format_, FORMAT)
    ours = json.loads(json.dumps(_metadata_facts(metadata)))
    for field in fields(CrossTurnPrefixMetadata):
        if theirs.get(field.name) != ours[field.name]:
            raise ForeignParcelError(field.name, theirs.get(field.name), ours[field.name])
    if their_layout != layout:
        raise ForeignParcelError("layout", "another one", "its own")
    if members != announced:
        raise DamagedParcelError("it does not hold what it announces")


def _manifest(facts: dict[str, Any], arrays: Buffers, fingerprint: str) -> Manifest:
    try:
        manifest = from_facts(facts, arrays["ids"].astype(np.uint32, copy=False))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedParcelError("a conversation is not described as it should be") from error
    lengths = [state.length for state in manifest.states]
    n = len(manifest.ids)
    if not lengths or not all(0 < length <= n for length in lengths) or lengths[-1] != n:
        raise DamagedParcelError("a conversation has no state at its end")
    if (manifest.rows, manifest.states) != name_files(f"{fingerprint} {NOBODY!r}", manifest.ids, lengths):
        raise DamagedParcelError("a conversation's parts are not those of its ids")
    return manifest


def _unpacked(name: str, packed: bytes, fingerprint: str) -> tuple[dict[str, Any], Buffers]:
    try:
        theirs, facts, arrays = blob.unpack(name, packed)
    except blob.DamagedBlobError as error:
        raise DamagedParcelError(f"{name}: {error}") from error
    if theirs != fingerprint:
        raise DamagedParcelError(f"{name} belongs to another file")
    return facts, arrays


def _members(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None:
                    yield member.name, content.read()
    except (tarfile.TarError, EOFError) as error:
        raise DamagedParcelError("it is cut, or no such file") from error


def _member(name: str, content: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return b"".join((info.tobuf(tarfile.USTAR_FORMAT), content, bytes(-len(content) % _RECORD)))
