"""A conversation that was read back from the disk, on its way into memory."""

from __future__ import annotations

from dataclasses import dataclass

from cache.entry import Entry, new_lineage
from cache.ids import TokenBuffer
from cache.manifest import Found
from cache.planner import CrossTurnPrefixMetadata
from cache.ring import CheckpointRing, RingLimits
from cache.state import Checkpoint, SequenceState


@dataclass(frozen=True, slots=True)
class Recalled:
    """What was read back.

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
        tenant: str | None,
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
            lineage=manifest.lineage if goes_on and self.found.is_whole else new_lineage(),
            slot=manifest.slot,
            tenant=tenant,
            metadata=metadata,
            ids=TokenBuffer(manifest.ids[: self.state.length]),
            ring=CheckpointRing(limits, self.checkpoints),
            keep=frozenset(manifest.keep),
            next_points=manifest.next_points,
            system_end=manifest.system_end,
            created_at=now_s,
            n_hits=0,
            state=self.state,
            used_at=now_s,
        )
