"""What makes up one conversation on disk: its ids, and the names of the files that hold its state.

Names are chained hashes over the ids from the start: equal beginnings have equal names, so a
conversation that grows writes only what is new, and a fork of it nothing twice.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cache.boundaries import PromptShape
from cache.entry import Entry, PrefixDigests, new_lineage
from cache.planner import (
    CrossTurnPrefixMetadata,
    CrossTurnSlotId,
    SlotKey,
    TokenBuffer,
    TokenIds,
    longest_common_token_prefix,
)
from cache.ring import CheckpointRing, RingLimits
from cache.state import Checkpoint, SequenceState

SEGMENT_TOKENS = 512
"""Tokens whose KV rows share a file. Only the last, partial segment is written anew as a conversation
grows."""


@dataclass(frozen=True, slots=True)
class RowsFile:
    """The KV rows of tokens [start, end)."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StateFile:
    """The recurrent state after ``length`` tokens."""

    name: str
    length: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One conversation on disk.

    Attributes:
        lineage: names the conversation for as long as it goes on.
        slot: whose memory it is.
        ids: uint32 [n], what was fed.
        rows: files that together hold the rows [0, n), in order.
        states: states to go back to, ascending; the last one stands at n.
        keep, shape: as in :class:`cache.entry.Conversation`.
        saved_unix_s: when it was last used.
    """

    lineage: str
    slot: SlotKey
    ids: TokenIds
    rows: tuple[RowsFile, ...]
    states: tuple[StateFile, ...]
    keep: tuple[int, ...]
    shape: PromptShape
    saved_unix_s: float

    @property
    def file_names(self) -> frozenset[str]:
        """Everything it needs."""
        return frozenset(f.name for f in self.rows) | frozenset(f.name for f in self.states)


@dataclass(frozen=True, slots=True)
class Found:
    """A conversation on disk and how far it helps a prompt.

    Attributes:
        state: the deepest of its states that the prompt can go on from.
        peer: the folder of the other server that wrote it; None for this one.
    """

    manifest: Manifest
    state: StateFile
    peer: Path | None = None

    @property
    def is_own_whole(self) -> bool:
        """Whether it is this server's own, and nothing of it would be left behind."""
        return self.peer is None and self.state is self.manifest.states[-1]


@dataclass(frozen=True, slots=True)
class Recalled:
    """What was read back from the disk, on its way into memory.

    Attributes:
        found: the conversation, as far as it helps the prompt.
        state: stands at ``found.state``.
        checkpoints: earlier states, ascending.
    """

    found: Found
    state: SequenceState
    checkpoints: tuple[Checkpoint, ...]

    def as_entry(
        self,
        number: int,
        now_s: float,
        *,
        metadata: CrossTurnPrefixMetadata,
        limits: RingLimits,
        goes_on: bool,
    ) -> Entry:
        """The entry to put to rest.

        Args:
            goes_on: whether it is the conversation itself; False where that is cut, or goes on
                elsewhere just now: then it becomes another one.
        """
        manifest = self.found.manifest
        return Entry(
            number=number,
            lineage=manifest.lineage if goes_on and self.found.is_own_whole else new_lineage(),
            slot=manifest.slot,
            metadata=metadata,
            ids=TokenBuffer(manifest.ids[: self.state.length]),
            ring=CheckpointRing(limits, self.checkpoints),
            keep=frozenset(manifest.keep),
            shape=manifest.shape,
            created_at=now_s,
            n_hits=0,
            state=self.state,
            used_at=now_s,
        )


def best_match(manifests: Iterable[Manifest], prompt_ids: TokenIds) -> Found | None:
    """Which of ``manifests`` saves ``prompt_ids`` [n] most; at least one id is left to feed."""
    best: Found | None = None
    for manifest in manifests:
        shared = min(longest_common_token_prefix(manifest.ids, prompt_ids), len(prompt_ids) - 1)
        for state in manifest.states:
            if state.length <= shared and (best is None or state.length > best.state.length):
                best = Found(manifest, state)
    return best


def describe(entry: Entry, fingerprint: str, on_disk: Container[str], now_unix_s: float) -> Manifest:
    """What of ``entry`` is worth the disk: its end, what the next turn goes back to, and whatever is
    there already.

    Args:
        fingerprint: of the model.
        on_disk: names of the files that are there.
        now_unix_s: seconds since 1970.
    """
    n = len(entry)
    rows, states = name_files(
        f"{fingerprint} {entry.slot!r}", entry.ids.view, (*entry.ring.lengths, n), entry.digests
    )
    return Manifest(
        lineage=entry.lineage,
        slot=entry.slot,
        ids=entry.ids.view.copy(),
        rows=rows,
        states=tuple(s for s in states if s.length == n or s.length in entry.keep or s.name in on_disk),
        keep=tuple(sorted(entry.keep)),
        shape=entry.shape,
        saved_unix_s=now_unix_s,
    )


def name_files(
    seed: str, ids: TokenIds, lengths: Iterable[int], known: PrefixDigests | None = None
) -> tuple[tuple[RowsFile, ...], tuple[StateFile, ...]]:
    """The files of a conversation with ``ids`` [n] and states at ``lengths``, the last of them n.

    Args:
        seed: what else the content depends on, and whose it is: model, tenant, slot.
        known: digests of the beginnings of ``ids``, which are added to.
    """
    wanted = sorted(lengths)
    cuts = sorted({*range(0, len(ids), SEGMENT_TOKENS), len(ids), *wanted})
    names = (known or PrefixDigests()).at(seed, ids, cuts)
    segments = [*range(0, len(ids), SEGMENT_TOKENS), len(ids)]
    rows = tuple(RowsFile(f"{names[end]}.rows", start, end) for start, end in pairwise(segments))
    return rows, tuple(StateFile(f"{names[length]}.state", length) for length in wanted)


def to_facts(manifest: Manifest) -> dict[str, Any]:
    """``manifest`` without its ids, as JSON can hold it."""
    facts = asdict(replace(manifest, ids=manifest.ids[:0]))
    del facts["ids"]
    return facts


def from_facts(facts: dict[str, Any], ids: TokenIds) -> Manifest:
    """The inverse of :func:`to_facts`.

    Raises:
        KeyError, TypeError, ValueError: ``facts`` are not those of a manifest.
    """
    return Manifest(
        lineage=str(facts["lineage"]),
        slot=_slot_from(facts["slot"]),
        ids=ids,
        rows=tuple(RowsFile(**row) for row in facts["rows"]),
        states=tuple(StateFile(**state) for state in facts["states"]),
        keep=tuple(facts["keep"]),
        shape=_shape_from(facts["shape"]),
        saved_unix_s=float(facts["saved_unix_s"]),
    )


def _slot_from(facts: dict[str, Any]) -> SlotKey:
    tenant = facts["tenant"]
    return SlotKey(None if tenant is None else str(tenant), CrossTurnSlotId(int(facts["id"]["value"])))


def _shape_from(facts: dict[str, Any]) -> PromptShape:
    last_user_start = facts["last_user_start"]
    return PromptShape(
        message_starts=tuple(facts["message_starts"]),
        shared_points=tuple(facts["shared_points"]),
        last_user_start=None if last_user_start is None else int(last_user_start),
        system_end=int(facts["system_end"]),
        questions=tuple(facts["questions"]),
    )
