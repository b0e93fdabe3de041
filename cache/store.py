"""Owns every retained conversation: who may use it, what it costs, when it goes.

A request's way: :meth:`Store.plan` looks, :meth:`Store.take` hands out a running entry, the engine
feeds it, :meth:`Store.save` publishes it or :meth:`Store.drop` forgets it. Everything happens on the
engine's thread. The store knows no text, no layers and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cache import selection
from cache.boundaries import PromptShape, choose_captures
from cache.choice import Choice, diverged_at
from cache.counters import Counters
from cache.entry import Entry, RunningEntry, TokenBuffer
from cache.eviction import ChooseVictim, least_useful
from cache.planner import (
    CrossTurnPrefixMetadata,
    CrossTurnSlotId,
    FullRefill,
    ReplayFromCheckpoint,
    TokenIds,
    checkpoint_survives_save,
)
from cache.ring import CheckpointRing, RingLimits
from cache.shelf import Shelf
from cache.slots import SlotInfo, describe
from cache.state import SequenceState


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
        choose_victim: decides what goes when bytes are needed; replaced only to compare policies.
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
        choose_victim: ChooseVictim = least_useful,
    ) -> None:
        self.metadata = metadata
        self.budget_bytes = budget_bytes
        self.counters = Counters()
        self._ring_limits = ring_limits
        self._share_prefixes = share_prefixes
        self._clock = clock
        self._new_state = new_state
        self._shelf = Shelf(
            self.counters,
            max_entries_per_slot=max_entries_per_slot,
            clock=clock,
            choose_victim=choose_victim,
        )
        self._running: dict[int, RunningEntry] = {}
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
        assert len(prompt_ids) > 0, "a prompt has at least one token"
        shape = shape or PromptShape()
        found = self._find(slot, prompt_ids, tenant, shape)
        free_bytes = self.budget_bytes - self.n_bytes
        forks = selection.should_fork(found, prompt_ids, shape.system_end, free_bytes=free_bytes)
        parted_at = diverged_at(found.plan, len(prompt_ids))
        if parted_at is not None and found.expects(parted_at):
            parted_at = None
        return Choice(
            slot=slot,
            tenant=tenant,
            prompt_ids=prompt_ids,
            shape=shape,
            plan=found.plan,
            origin=found.origin if found.plan.reusable_len > 0 else "none",
            forks=forks,
            parted_at=parted_at,
            captures=choose_captures(
                shape,
                start=found.plan.suffix_start,
                end=len(prompt_ids),
                parted_at=parted_at,
                max_count=self._ring_limits.max_count,
            ),
            source=found.source,
        )

    def take(self, choice: Choice) -> RunningEntry:
        """Carry ``choice`` out: its entry moves, or is copied, into a running entry whose state
        stands after the first ``choice.plan.reusable_len`` prompt ids."""
        source = choice.source
        if source is None or isinstance(choice.plan.mode, FullRefill):
            running = self._run(choice, TokenBuffer(), CheckpointRing(self._ring_limits), self._new_state())
        elif choice.forks or isinstance(source, RunningEntry):
            running = self._fork(choice, source)
        else:
            running = self._move(choice, source)
        assert running.state.length == len(running) == choice.plan.reusable_len
        self._count(choice)
        self.enforce()
        return running

    def branch(self, running: RunningEntry) -> RunningEntry:
        """A second running entry at the same position, by copy (several replies to one prompt)."""
        twin = running.branch(self._next_number())
        self._running[twin.number] = twin
        self.enforce()
        return twin

    def save(self, running: RunningEntry) -> None:
        """Publish ``running`` as it stands: its ids are what was fed, its state stands after them.

        What is larger than the whole budget, or was deleted meanwhile, is forgotten instead.
        """
        entry = running.at_rest(self._clock())
        del self._running[running.number]
        if len(entry) > 0 and not running.is_forgotten and entry.n_own_bytes <= self.budget_bytes:
            self.counters.n_saves += 1
            self._shelf.publish(entry)
        else:
            self.counters.n_drops += 1
        self.enforce()

    def drop(self, running: RunningEntry) -> None:
        """Forget ``running``."""
        del self._running[running.number]
        self.counters.n_drops += 1

    def clear(self) -> None:
        """Forget everything, what runs included: after a fault nothing of it can be trusted."""
        self._running.clear()
        for entry in tuple(self._shelf.entries()):
            self._shelf.remove(entry)

    # -- memory ---------------------------------------------------------------------------------

    @property
    def n_bytes(self) -> int:
        """Bytes held now, running entries and rings included."""
        ledger, running = self._shelf.ledger, self._running.values()
        return ledger.n_bytes + ledger.beyond(running) + sum(r.n_own_bytes for r in running)

    @property
    def n_pinned_bytes(self) -> int:
        """Bytes of the running entries alone, the checkpoints they share with resting ones included."""
        return sum(r.n_own_bytes + r.ring.n_bytes for r in self._running.values())

    def can_admit(self, n_bytes: int) -> bool:
        """Whether a request that will hold ``n_bytes`` may start beside those that run: always when
        nothing runs, for a conversation larger than the budget is served, then dropped."""
        return not self._running or self.n_pinned_bytes + n_bytes <= self.budget_bytes

    def enforce(self) -> None:
        """Evict until the budget holds or nothing is at rest. Call it as running entries grow."""
        while self.n_bytes > self.budget_bytes and self._shelf.evict_one():
            pass

    def check(self) -> None:
        """Assert all invariants over the whole store. For tests and debugging; walks everything."""
        self._shelf.check()
        resting = tuple(self._shelf.entries())
        states = [id(c.state) for c in self._conversations() if not c.is_lent]
        assert len(states) == len(set(states)), "two entries share a state"
        rings = {id(c): c.n_bytes for e in self._conversations() for c in e.ring.checkpoints}
        n_held = sum(c.n_own_bytes for c in self._conversations()) + sum(rings.values())
        assert n_held == self.n_bytes, f"{self.n_bytes} bytes are counted, {n_held} are held"
        assert n_held <= self.budget_bytes or not resting, "over budget with something at rest"

    # -- for people -----------------------------------------------------------------------------

    def slots(self, tenant: str | None = None) -> tuple[SlotInfo, ...]:
        """The slots of ``tenant``; a server that knows no tenants has only those of None."""
        return describe((c for c in self._conversations() if c.tenant == tenant), self._clock())

    def delete(self, slot: CrossTurnSlotId, tenant: str | None = None) -> int:
        """Forget a slot's entries, those that still run as soon as they end; returns how many."""
        resting = self._shelf.entries_of(slot, tenant)
        running = self._running_in(slot)
        for entry in resting:
            self._shelf.remove(entry)
        for runner in running:
            runner.is_forgotten = True
        return len(resting) + len(running)

    def fork(self, slot: CrossTurnSlotId, new_slot: CrossTurnSlotId, tenant: str | None = None) -> int:
        """Copy a slot's entries at rest under ``new_slot`` of the same tenant; returns how many."""
        assert slot != new_slot
        entries = self._shelf.entries_of(slot, tenant)
        for entry in entries:
            self._shelf.publish(entry.copy(self._next_number(), new_slot, self._clock()))
        self.enforce()
        return len(entries)

    # -- inside ---------------------------------------------------------------------------------

    def _find(
        self, slot: CrossTurnSlotId, prompt_ids: TokenIds, tenant: str | None, shape: PromptShape
    ) -> selection.Candidate:
        runners = [r for r in self._running_in(slot) if r.can_fork]
        own = selection.own_candidates(
            self._shelf.entries_of(slot, tenant), runners, self.metadata, prompt_ids
        )
        found = selection.best(own, self.metadata, prompt_ids)
        if not self._share_prefixes or found.plan.reusable_len >= shape.system_end:
            return found
        others = (c for c in self._conversations() if c.slot != slot and c.tenant == tenant and c.can_fork)
        foreign = selection.foreign_candidates(others, self.metadata, prompt_ids, shape.system_end)
        return selection.best((found, *foreign), self.metadata, prompt_ids)

    def _move(self, choice: Choice, entry: Entry) -> RunningEntry:
        self._shelf.remove(entry)
        n = choice.plan.reusable_len
        if isinstance(choice.plan.mode, ReplayFromCheckpoint):
            entry.state.restore(entry.ring.at(n))
            entry.ids.truncate(n)
            entry.ring.retain(lambda length: checkpoint_survives_save(length, n, n + 1))
        running = self._run(choice, entry.ids, entry.ring, entry.state, entry)
        if len(running) == choice.plan.old_represented_len and (choice.shape.last_user_start or n) < n:
            # What was read ahead ends inside the last message's header, past the boundary that an edit
            # of that message goes back to: its end takes that boundary's place.
            running.ring.add(running.state.snapshot())
            running.keep |= {n}
        return running

    def _fork(self, choice: Choice, source: Entry | RunningEntry) -> RunningEntry:
        n = choice.plan.reusable_len
        state = source.fork_state(source.ring.at(n))
        # A checkpoint is a value: forks of a slot hold the same ones. Slots share none, ever.
        shared = source.ring.checkpoints if source.slot == choice.slot else ()
        ring = CheckpointRing(self._ring_limits, (c for c in shared if c.length <= n))
        ring.add(state.snapshot())
        self.counters.n_forks += 1
        return self._run(choice, source.ids.copy(n), ring, state)

    def _run(
        self,
        choice: Choice,
        ids: TokenBuffer,
        ring: CheckpointRing,
        state: SequenceState,
        moved: Entry | None = None,
    ) -> RunningEntry:
        shape = choice.shape
        # A prompt that says nothing of its shape keeps what is known of its conversation.
        known = moved if shape == PromptShape() else None
        running = RunningEntry(
            number=self._next_number(),
            slot=choice.slot,
            tenant=choice.tenant,
            metadata=self.metadata,
            ids=ids,
            ring=ring,
            keep=choice.keep if known is None else known.keep | choice.keep,
            next_points=shape.shared_points if known is None else known.next_points,
            system_end=shape.system_end if known is None else known.system_end,
            created_at=self._clock() if moved is None else moved.created_at,
            n_hits=0 if moved is None else moved.n_hits + 1,
            live=state,
        )
        self._running[running.number] = running
        return running

    def _count(self, choice: Choice) -> None:
        self.counters.n_requests += 1
        self.counters.n_hits += choice.plan.reusable_len > 0
        self.counters.n_prompt_tokens += len(choice.prompt_ids)
        self.counters.n_reused_tokens += choice.plan.reusable_len

    def _running_in(self, slot: CrossTurnSlotId) -> tuple[RunningEntry, ...]:
        return tuple(r for r in self._running.values() if r.slot == slot)

    def _conversations(self) -> Iterator[Entry | RunningEntry]:
        yield from self._running.values()
        yield from self._shelf.entries()

    def _next_number(self) -> int:
        self._n_numbers += 1
        return self._n_numbers
