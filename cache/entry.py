"""One retained conversation: the ids that were fed, the state after them, its ring.

At rest it is an :class:`Entry` in a slot; while a request feeds it, a :class:`RunningEntry` that
only that request may touch. An entry's ids are always the ids that were fed, nothing predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from hashlib import blake2b
from typing import ClassVar
from uuid import uuid4

from cache.boundaries import PromptShape
from cache.planner import (
    CrossTurnPrefixEntry,
    CrossTurnPrefixMetadata,
    SlotKey,
    TokenBuffer,
    TokenIds,
    checkpoint_survives_save,
)
from cache.ring import CheckpointRing
from cache.state import Checkpoint, LentState, SequenceState


def new_lineage() -> str:
    """A name that no conversation has had, in any process."""
    return uuid4().hex


class PrefixDigests:
    """Digests of the first n ids of a conversation, kept so that one which grows is not hashed from the start
    again: up to a known position it stays what it was."""

    def __init__(self, known: dict[str, dict[int, blake2b]] | None = None) -> None:
        self._known = known or {}

    def at(self, seed: str, ids: TokenIds, ends: Iterable[int]) -> dict[int, str]:
        """The digest of ``seed`` and the first n of ``ids``, for each n of ``ends``, ascending."""
        if seed not in self._known:
            self._known[seed] = {0: blake2b(seed.encode(), digest_size=16)}
        known = self._known[seed]
        start, digests = 0, {}
        for end in ends:
            if end not in known:
                known[end] = known[start].copy()
                known[end].update(ids[start:end].tobytes())
            digests[end] = known[end].hexdigest()
            start = end
        return digests

    def forget_after(self, n: int) -> None:
        """The ids after the first ``n`` are about to change."""
        for known in self._known.values():
            for end in [end for end in known if end > n]:
                del known[end]

    def copy(self) -> PrefixDigests:
        """The same digests, for a conversation that begins alike."""
        return PrefixDigests({seed: dict(known) for seed, known in self._known.items()})


Parts = tuple[TokenBuffer, CheckpointRing, SequenceState]
"""What a conversation is made of."""


class Standing(Enum):
    """What is expected of a conversation."""

    GOING_ON = "it may go on at any time"
    GUESS = "it was read ahead and nobody has asked for it yet"
    OVER = "another one has taken its place"


@dataclass(frozen=True, slots=True)
class Parent:
    """Where a conversation branched off.

    Attributes:
        slot: of the conversation it branched off.
        number: of that entry, in its store.
        lineage: of that conversation.
        length: tokens they had in common then, as far as they were copied.
    """

    slot: SlotKey
    number: int
    lineage: str
    length: int


@dataclass(kw_only=True, eq=False)
class Conversation:
    """What an entry is besides its state.

    Attributes:
        number: unique in the store, in order of creation.
        lineage: names the conversation for as long as it goes on, across restarts too.
        slot: whose memory it is.
        metadata: what the state was computed with.
        ids: what was fed.
        ring: earlier states to go back to.
        keep: positions that the ring must not thin.
        shape: of its last prompt.
        parent: the conversation it branched off; None where it did not.
        standing: what is expected of it.
        n_answers: requests that were answered in it.
        created_at: when the conversation was first seen, in seconds of the store's clock.
        n_hits: how many requests have reused it.
        ahead_from: its ids from here on were read ahead of the turn that has them; None where none were.
        digests: of its beginnings.
    """

    number: int
    lineage: str
    slot: SlotKey
    metadata: CrossTurnPrefixMetadata
    ids: TokenBuffer
    ring: CheckpointRing
    keep: frozenset[int]
    shape: PromptShape
    created_at: float
    n_hits: int
    parent: Parent | None = None
    standing: Standing = Standing.GOING_ON
    n_answers: int = 0
    ahead_from: int | None = None
    digests: PrefixDigests = field(default_factory=PrefixDigests)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def next_points(self) -> tuple[int, ...]:
        """Where a next render of this conversation may leave these ids, ascending."""
        return self.shape.shared_points

    @property
    def system_end(self) -> int:
        """End of its system and tools block, in tokens."""
        return self.shape.system_end

    def forget_after(self, n: int) -> None:
        """Forget the ids after the first ``n`` and the checkpoints that lie among them."""
        self.ids.truncate(n)
        self.digests.forget_after(n)
        self.ring.retain(lambda length: checkpoint_survives_save(length, n, n + 1))

    def prefix(self, gdn_snapshot_len: int) -> CrossTurnPrefixEntry:
        """This conversation as the planner sees it, its recurrent state at ``gdn_snapshot_len``."""
        return CrossTurnPrefixEntry(
            slot_id=self.slot.id,
            metadata=self.metadata,
            token_ids=self.ids.view,
            represented_len=len(self.ids),
            gdn_snapshot_len=gdn_snapshot_len,
        )


@dataclass(kw_only=True, eq=False)
class Entry(Conversation):
    """A conversation at rest. Nothing of it changes but its ring, which the store may thin.

    Attributes:
        state: stands after exactly the ids.
        used_at: when it was last saved.
        shared_with: ids in common with each other entry of the slot, by its number.
    """

    state: SequenceState
    used_at: float
    shared_with: dict[int, int] = field(default_factory=dict)

    is_lent: ClassVar[bool] = False
    can_fork: ClassVar[bool] = True

    @property
    def n_own_bytes(self) -> int:
        """Bytes of state and ids; checkpoints are counted apart, for forks of a slot share them."""
        return self.state.n_bytes + self.ids.n_bytes

    def as_prefix(self) -> CrossTurnPrefixEntry:
        """This entry as the planner sees it."""
        return self.prefix(self.state.length)

    def fork_state(self, checkpoint: Checkpoint) -> SequenceState:
        """A state of its own at ``checkpoint``, one of this entry's ring or of its end."""
        return self.state.fork(checkpoint)

    def cut(self, length: int) -> None:
        """Go back to the ring's checkpoint at ``length``; no longer at rest, it goes on from there."""
        self.state.restore(self.ring.at(length))
        self.forget_after(length)

    def shrink(self, length: int) -> None:
        """Keep only what lies before the ring's checkpoint at ``length``, and give back the rest's memory;
        still at rest, and whole as far as it reaches."""
        self.cut(length)
        self.ring.remove(length)
        self.ids = self.ids.copy(length)
        self.state.shrink()

    def copy(self, number: int, slot: SlotKey, now: float) -> Entry:
        """The same conversation under another slot of the tenant: KV rows are copied, the ring holds the same
        checkpoints, which are values."""
        return replace(
            self,
            number=number,
            lineage=new_lineage(),
            slot=slot,
            ids=self.ids.copy(len(self)),
            digests=self.digests.copy(),
            ring=CheckpointRing(self.ring.limits, self.ring.checkpoints),
            state=self.state.fork(self.state.snapshot()),
            parent=Parent(self.slot, self.number, self.lineage, len(self)),
            n_hits=0,
            used_at=now,
            shared_with={},
        )

    def check(self) -> None:
        """Assert invariant 1 and that the ring lies within the history."""
        n = len(self)
        assert self.state.length == n, f"the state stands at {self.state.length}, {n} ids were fed"
        self.state.check()
        assert all(checkpoint_survives_save(length, n, n) for length in self.ring.lengths), self.ring.lengths
        assert self.ring.lengths == tuple(c.length for c in self.ring.checkpoints)


@dataclass(kw_only=True, eq=False)
class RunningEntry(Conversation):
    """The one entry a request feeds. Its bytes stay counted and nothing of it can be evicted.

    Whoever feeds the state also feeds ``ids``; earlier states join the ring by :meth:`capture`.

    Attributes:
        live: the state, as long as it is not lent; read it through :attr:`state`.
        lent: who answers for the state while it is lent.
        is_forgotten: its session was deleted meanwhile; it will not be kept.
    """

    live: SequenceState | None
    lent: LentState | None = None
    is_forgotten: bool = False

    def __post_init__(self) -> None:
        self._n_state_bytes = self.state.n_bytes

    @classmethod
    def begin(
        cls,
        number: int,
        now_s: float,
        *,
        slot: SlotKey,
        metadata: CrossTurnPrefixMetadata,
        parts: Parts,
        shape: PromptShape,
        keep: frozenset[int],
        moved: Entry | None = None,
        known_shape: PromptShape | None = None,
        parent: Parent | None = None,
        standing: Standing = Standing.GOING_ON,
    ) -> RunningEntry:
        """What a request starts with.

        Args:
            parts: stand after the ids that are reused.
            shape: of the prompt.
            known_shape: of the conversation that is reused; it stays where the prompt's says nothing.
            keep: positions that the ring must not thin.
            moved: the entry that goes on; None where the conversation is a new one.
            parent: what a new one branched off, if it did.
        """
        ids, ring, state = parts
        return cls(
            number=number,
            lineage=new_lineage() if moved is None else moved.lineage,
            slot=slot,
            metadata=metadata,
            ids=ids,
            ring=ring,
            keep=keep,
            shape=known_shape if known_shape is not None and shape == PromptShape() else shape,
            parent=parent if moved is None else moved.parent,
            standing=standing,
            n_answers=0 if moved is None else moved.n_answers,
            created_at=now_s if moved is None else moved.created_at,
            n_hits=0 if moved is None else moved.n_hits + 1,
            digests=PrefixDigests() if moved is None else moved.digests,
            live=state,
        )

    @property
    def state(self) -> SequenceState:
        """The live state. Must not be asked for while it is lent."""
        assert self.live is not None, "the state is lent"
        return self.live

    @property
    def is_lent(self) -> bool:
        """Whether somebody else holds the state."""
        return self.live is None

    @property
    def n_own_bytes(self) -> int:
        """Bytes of state and ids, without the ring."""
        holder = self.lent if self.live is None else self.live
        if holder is not None:
            self._n_state_bytes = holder.n_bytes
        return self._n_state_bytes + self.ids.n_bytes

    @property
    def can_fork(self) -> bool:
        """Whether another request may branch off here now."""
        return self.live is not None or self.lent is not None

    def lend(self, lent: LentState | None = None) -> SequenceState:
        """Hand the state over, to a decoding batch for instance.

        Args:
            lent: answers for the state meanwhile; without it nobody can fork from this entry until
                the state is back, and its bytes count as they were.
        """
        state = self.state
        self._n_state_bytes = state.n_bytes
        self.live, self.lent = None, lent
        return state

    def give_back(self, state: SequenceState) -> None:
        """End :meth:`lend`: ``state`` stands after exactly the ids."""
        assert self.live is None, "the state was not lent"
        self.live, self.lent = state, None

    def fork_state(self, checkpoint: Checkpoint) -> SequenceState:
        """A state of its own at ``checkpoint``, one of this entry's ring."""
        holder = self.lent if self.live is None else self.live
        assert holder is not None, "nobody can fork a state that is lent without an answerer"
        return holder.fork(checkpoint)

    def capture(self, checkpoint: Checkpoint) -> None:
        """Keep ``checkpoint``, taken after the first ``checkpoint.length`` of the ids fed."""
        self.ring.add(checkpoint)
        self.ring.thin(end=max(len(self), checkpoint.length), keep=self.keep)

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Go back to ``checkpoint``, taken on this state: what was fed after it is forgotten."""
        self.state.restore(checkpoint)
        self.forget_after(checkpoint.length)

    def branch(self, number: int) -> RunningEntry:
        """Another running entry at the same position; of the state a copy, of the ring the same values."""
        return replace(
            self,
            number=number,
            lineage=new_lineage(),
            ids=self.ids.copy(len(self)),
            digests=self.digests.copy(),
            ring=CheckpointRing(self.ring.limits, self.ring.checkpoints),
            n_hits=0,
            live=self.state.fork(self.state.snapshot()),
        )

    def at_rest(self, now: float) -> Entry:
        """What this becomes when it is saved: only checkpoints that stay valid, and no more than fit."""
        n, state = len(self), self.state
        self.ring.retain(lambda length: checkpoint_survives_save(length, n, n))
        self.ring.thin(end=n, keep=self.keep)
        known = {f.name: getattr(self, f.name) for f in fields(Conversation)}
        return Entry(**known, state=state, used_at=now)

    def as_prefix(self) -> CrossTurnPrefixEntry:
        """This entry as the planner sees it: only its checkpoints are on offer, not its moving end."""
        return self.prefix(gdn_snapshot_len=-1)


def copied(source: Entry | RunningEntry, slot: SlotKey, n: int) -> Parts:
    """Copies of what ``source`` has of its first ``n`` ids, one of its ring's lengths, for ``slot``."""
    state = source.fork_state(source.ring.at(n))
    # A checkpoint is a value: forks within a slot hold the same ones, and so does a
    # slot that its owner had copied. What is borrowed from another slot unasked is a copy.
    shared = source.ring.checkpoints if source.slot == slot else ()
    ring = CheckpointRing(source.ring.limits, (c for c in shared if c.length <= n))
    ring.add(state.snapshot())
    return source.ids.copy(n), ring, state
