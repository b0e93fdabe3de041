"""Owns every retained conversation: who may use it, what it costs, when it goes.

A request's way: :meth:`Store.plan` looks, :meth:`Store.take` hands out a running entry, the engine
feeds it, :meth:`Store.save` publishes it or :meth:`Store.drop` forgets it. Everything happens on the
engine's thread. The store knows no text, no layers and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cache.boundaries import PromptShape, choose_captures
from cache.choice import Choice, Origin, diverged_at
from cache.entry import Entry, RunningEntry, TokenBuffer
from cache.eviction import least_useful
from cache.ledger import Ledger
from cache.planner import (
    CrossTurnPrefixMetadata,
    CrossTurnSlotId,
    ExactAppend,
    FullRefill,
    PrefixRestorePlan,
    TokenIds,
    checkpoint_survives_save,
    plan_prefix_reuse,
)
from cache.ring import CheckpointRing, RingLimits
from cache.slots import EntryInfo, Slot, SlotInfo
from cache.state import Checkpoint, SequenceState

MIN_FORK_TOKENS = 32
"""A tail shorter than this is not worth a copy: feeding it again costs less."""


@dataclass(slots=True)
class Counters:
    """What happened since the store was made."""

    n_plans: int = 0
    n_hits: int = 0
    n_forks: int = 0
    n_saves: int = 0
    n_drops: int = 0
    n_evicted_entries: int = 0
    n_evicted_checkpoints: int = 0
    n_prompt_tokens: int = 0
    n_reused_tokens: int = 0


class Store:
    """All slots, one budget.

    Args:
        metadata: of the model that serves; entries with another are never reused.
        budget_bytes: what everything retained or running may hold together. Running entries are
            never cut: while they alone exceed it, nothing is retained beside them.
        ring_limits: per entry.
        share_prefixes: whether the system and tools block may be copied between slots of a tenant.
        clock: seconds, monotonic.
        new_state: makes an empty state.
        max_entries_per_slot: keeps planning cheap; the budget is the true limit.
    """

    def __init__(
        self,
        metadata: CrossTurnPrefixMetadata,
        *,
        budget_bytes: int,
        ring_limits: RingLimits,
        share_prefixes: bool,
        clock: Callable[[], float],
        new_state: Callable[[], SequenceState],
        max_entries_per_slot: int = 24,
    ) -> None:
        self.metadata = metadata
        self.budget_bytes = budget_bytes
        self.counters = Counters()
        self._ring_limits = ring_limits
        self._share_prefixes = share_prefixes
        self._clock = clock
        self._new_state = new_state
        self._max_entries_per_slot = max_entries_per_slot
        self._slots: dict[CrossTurnSlotId, Slot] = {}
        self._running: dict[int, RunningEntry] = {}
        self._ledger = Ledger()
        self._n_numbers = 0

    # -- a request's way ------------------------------------------------------------------------

    def plan(
        self,
        slot: CrossTurnSlotId,
        prompt_ids: TokenIds,
        tenant: str | None = None,
        shape: PromptShape | None = None,
    ) -> Choice:
        """What to reuse for ``prompt_ids`` [n], n >= 1. Changes nothing."""
        raise NotImplementedError

    def take(self, choice: Choice) -> RunningEntry:
        """Carry ``choice`` out: its entry moves, or is copied, into a running entry whose state
        stands after the first ``choice.plan.reusable_len`` prompt ids."""
        raise NotImplementedError

    def branch(self, running: RunningEntry) -> RunningEntry:
        """A second running entry at the same position, by copy (several replies to one prompt)."""
        raise NotImplementedError

    def save(self, running: RunningEntry) -> None:
        """Publish ``running`` as it stands: its ids are what was fed, its state stands after them."""
        raise NotImplementedError

    def drop(self, running: RunningEntry) -> None:
        """Forget ``running``."""
        raise NotImplementedError

    # -- memory ---------------------------------------------------------------------------------

    @property
    def n_bytes(self) -> int:
        """Bytes held now, running entries and rings included."""
        raise NotImplementedError

    @property
    def n_pinned_bytes(self) -> int:
        """Bytes of the running entries alone."""
        raise NotImplementedError

    def can_admit(self, n_bytes: int) -> bool:
        """Whether a request that will hold ``n_bytes`` may start beside those that run: always when
        nothing runs, for a conversation larger than the budget is served, then dropped."""
        raise NotImplementedError

    def enforce(self) -> None:
        """Evict until the budget holds or nothing is at rest. Call it as running entries grow."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert all invariants over the whole store. For tests and debugging; walks everything."""
        raise NotImplementedError

    # -- for people -----------------------------------------------------------------------------

    def slots(self, tenant: str | None = None) -> tuple[SlotInfo, ...]:
        """The slots of ``tenant`` (all slots when the server knows no tenants)."""
        raise NotImplementedError

    def delete(self, slot: CrossTurnSlotId) -> int:
        """Forget a slot's entries at rest; returns how many. Running ones are not touched."""
        raise NotImplementedError

    def fork(self, slot: CrossTurnSlotId, new_slot: CrossTurnSlotId) -> int:
        """Copy a slot's entries at rest under ``new_slot``; returns how many."""
        raise NotImplementedError
