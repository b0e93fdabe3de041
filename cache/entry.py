"""One retained conversation: the ids that were fed, the state after them, its ring.

At rest it is an :class:`Entry` in a slot; while a request feeds it, a :class:`RunningEntry` that
only that request may touch. An entry's ids are always the ids that were fed, nothing predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from typing import Protocol

import numpy as np

from cache.planner import CrossTurnPrefixEntry, CrossTurnPrefixMetadata, CrossTurnSlotId, TokenIds
from cache.ring import CheckpointRing
from cache.state import Checkpoint, SequenceState


class TokenBuffer:
    """Token ids that grow at the end and can be cut: uint32 [n]."""

    def __init__(self, ids: TokenIds | Iterable[int] = ()) -> None:
        first = np.array(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.uint32)
        self._ids: TokenIds = first
        self._n = len(first)

    def __len__(self) -> int:
        return self._n

    @property
    def view(self) -> TokenIds:
        """The ids, without a copy; valid until the buffer is next changed."""
        return self._ids[: self._n]

    @property
    def n_bytes(self) -> int:
        """Bytes held, spare room included."""
        return int(self._ids.nbytes)

    def append(self, token: int) -> None:
        """Add one id."""
        self._reserve(1)
        self._ids[self._n] = token
        self._n += 1

    def extend(self, ids: TokenIds | Iterable[int]) -> None:
        """Add ids in order."""
        new = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, dtype=np.uint32)
        self._reserve(len(new))
        self._ids[self._n : self._n + len(new)] = new
        self._n += len(new)

    def truncate(self, n: int) -> None:
        """Forget the ids from ``n`` on."""
        assert 0 <= n <= self._n
        self._n = n

    def copy(self, n: int) -> TokenBuffer:
        """A buffer of its own with the first ``n`` ids."""
        return TokenBuffer(self.view[:n])

    def _reserve(self, n_more: int) -> None:
        needed = self._n + n_more
        if needed > len(self._ids):
            grown = np.empty(max(needed, len(self._ids) * 5 // 4, 64), dtype=np.uint32)
            grown[: self._n] = self.view
            self._ids = grown


class LentState(Protocol):
    """A state that someone else holds for a while, such as a row of a decoding batch."""

    @property
    def n_bytes(self) -> int:
        """Bytes held for this sequence, spare room included."""

    def fork(self, checkpoint: Checkpoint) -> SequenceState:
        """A state of its own at ``checkpoint``; the lent one goes on undisturbed."""


@dataclass(kw_only=True, eq=False)
class Conversation:
    """What an entry is besides its state.

    Attributes:
        number: unique in the store, in order of creation.
        slot: whose memory it is.
        tenant: whose slot it is.
        metadata: what the state was computed with.
        ids: what was fed.
        ring: earlier states to go back to.
        keep: positions that the ring must not thin.
        next_points: where a next render of this conversation may leave these ids, ascending.
        system_end: end of its system and tools block, in tokens.
        created_at: when the conversation was first seen, in seconds of the store's clock.
        n_hits: how many requests have reused it.
    """

    number: int
    slot: CrossTurnSlotId
    tenant: str | None
    metadata: CrossTurnPrefixMetadata
    ids: TokenBuffer
    ring: CheckpointRing
    keep: frozenset[int]
    next_points: tuple[int, ...]
    system_end: int
    created_at: float
    n_hits: int

    def __len__(self) -> int:
        return len(self.ids)

    def prefix(self, gdn_snapshot_len: int) -> CrossTurnPrefixEntry:
        """This conversation as the planner sees it, its recurrent state at ``gdn_snapshot_len``."""
        return CrossTurnPrefixEntry(
            slot_id=self.slot,
            metadata=self.metadata,
            token_ids=self.ids.view,
            represented_len=len(self.ids),
            kv=None,
            gdn_snapshot_len=gdn_snapshot_len,
        )


@dataclass(kw_only=True, eq=False)
class Entry(Conversation):
    """A conversation at rest. Nothing of it changes but its ring, which the store may thin.

    Attributes:
        state: stands after exactly the ids.
        used_at: when it was last saved or forked from.
        shared_with: ids in common with each other entry of the slot, by its number.
    """

    state: SequenceState
    used_at: float
    shared_with: dict[int, int] = field(default_factory=dict)

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

    def check(self) -> None:
        """Assert invariant 1 and that the ring lies within the history."""
        assert self.state.length == len(self.ids), (self.state.length, len(self.ids))
        self.state.check()
        assert all(0 < n < len(self.ids) for n in self.ring.lengths), (self.ring.lengths, len(self.ids))
        assert all(n == c.length for n, c in zip(self.ring.lengths, self.ring.checkpoints, strict=True))


@dataclass(kw_only=True, eq=False)
class RunningEntry(Conversation):
    """The one entry a request feeds. Its bytes stay counted and nothing of it can be evicted.

    Whoever feeds the state also feeds ``ids``; earlier states join the ring by :meth:`capture`.
    """

    first_state: InitVar[SequenceState]

    def __post_init__(self, first_state: SequenceState) -> None:
        self._state: SequenceState | None = first_state
        self._lent: LentState | None = None
        self._n_state_bytes = first_state.n_bytes

    @property
    def state(self) -> SequenceState:
        """The live state. Must not be asked for while it is lent."""
        assert self._state is not None, "the state is lent"
        return self._state

    @property
    def is_lent(self) -> bool:
        """Whether somebody else holds the state."""
        return self._state is None

    @property
    def n_own_bytes(self) -> int:
        """Bytes of state and ids, without the ring."""
        if self._state is not None:
            self._n_state_bytes = self._state.n_bytes
        elif self._lent is not None:
            self._n_state_bytes = self._lent.n_bytes
        return self._n_state_bytes + self.ids.n_bytes

    @property
    def can_fork(self) -> bool:
        """Whether another request may branch off here now."""
        return self._state is not None or self._lent is not None

    def lend(self, lent: LentState | None = None) -> SequenceState:
        """Hand the state over, to a decoding batch for instance.

        Args:
            lent: answers for the state meanwhile; without it nobody can fork from this entry until
                the state is back, and its bytes count as they were.
        """
        state = self.state
        self._n_state_bytes = state.n_bytes
        self._state, self._lent = None, lent
        return state

    def give_back(self, state: SequenceState) -> None:
        """End :meth:`lend`: ``state`` stands after exactly ``ids``."""
        assert self._state is None, "the state was not lent"
        self._state, self._lent = state, None

    def fork_state(self, checkpoint: Checkpoint) -> SequenceState:
        """A state of its own at ``checkpoint``, one of this entry's ring."""
        source = self._state if self._state is not None else self._lent
        assert source is not None, "nobody can fork a state that is lent without an answerer"
        return source.fork(checkpoint)

    def capture(self, checkpoint: Checkpoint) -> None:
        """Keep ``checkpoint``, taken at ``checkpoint.length`` of the ids fed (or being fed)."""
        self.ring.add(checkpoint)
        live_bytes = self.n_own_bytes
        self.ring.thin(end=max(len(self.ids), checkpoint.length), live_bytes=live_bytes, keep=self.keep)

    def as_prefix(self) -> CrossTurnPrefixEntry:
        """This entry as the planner sees it: only its checkpoints are on offer, not its moving end."""
        return self.prefix(gdn_snapshot_len=-1)
