"""Owns every retained conversation: who may use it, what it costs, when it goes.

A request's way: :meth:`Store.plan` looks, :meth:`Store.take` hands out a running entry, the engine
feeds it, :meth:`Store.save` publishes it or :meth:`Store.drop` forgets it. Everything happens on the
engine's thread. The store knows no text, no layers and no HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from cache import selection
from cache.boundaries import PromptShape
from cache.disk.manifest import Found
from cache.disk.tier import DiskTier
from cache.entry import Entry, Parts, RunningEntry, Standing, copied
from cache.eviction import PATIENCE_S, ChooseVictim, least_useful, least_useful_spare
from cache.planner import (
    CrossTurnPrefixMetadata,
    FullRefill,
    ReplayFromCheckpoint,
    SlotKey,
    TokenBuffer,
    TokenIds,
)
from cache.ring import CheckpointRing, RingLimits
from cache.selection import Candidate, Choice
from cache.shelf import Counters, NoDisk, Shelf, check_all
from cache.slots import Habits, SlotInfo, describe
from cache.state import SequenceState, StateCodec
from cache.travel import Departure, Traveller, contents, fingerprint_of

MIN_RECALL_TOKENS = 64
"""Reading back from the disk must save at least so much over what memory holds."""


class BudgetError(ValueError):
    """Something is larger than all that may be held; numbers in bytes."""

    def __init__(self, n_bytes: int, budget_bytes: int) -> None:
        super().__init__(f"{n_bytes} bytes do not fit the memory budget of {budget_bytes}")


TOKENS_PER_CAPTURE = 256
"""Tokens of a prompt for each state that is kept while it is read, see ``bench/captures.py``."""

MIN_CAPTURES = 16
"""States that may be kept of any prompt."""

ANSWERS_TO_TAKE_OVER = 2
"""So many answers show that a conversation has taken the place of the one it is the summary of."""


class Store:
    """All slots, one budget.

    Args:
        metadata: of the model that serves; entries with another are never reused.
        budget_bytes: what everything retained or running may hold together. Running entries are never
            cut: while they alone exceed it, nothing is retained beside them, and what they hold stays
            when they come to rest until another request needs room.
        ring_limits: per entry.
        share_prefixes: whether the system and tools block may be copied between slots of a tenant.
        share_histories: whether all that conversations have in common may be, and a plan tell of it.
        clock: seconds, monotonic.
        new_state: makes an empty state.
        max_entries_per_slot: keeps planning cheap; the budget is the true limit.
        choose_victim: decides what goes when bytes are needed; replaced only to compare policies.
        disk: keeps what is at rest across restarts and evictions; the engine gives it time to write
            (:meth:`DiskTier.step`) when it has nothing else to do, and closes it. None for none.
        codec: states to arrays and back, for conversations that travel; None where none does.
    """

    def __init__(
        self,
        metadata: CrossTurnPrefixMetadata,
        *,
        budget_bytes: int,
        ring_limits: RingLimits,
        share_prefixes: bool,
        share_histories: bool = False,
        clock: Callable[[], float],
        new_state: Callable[[], SequenceState],
        max_entries_per_slot: int = 128,
        choose_victim: ChooseVictim = least_useful,
        disk: DiskTier | None = None,
        codec: StateCodec | None = None,
    ) -> None:
        self.metadata = metadata
        self._budget_bytes = budget_bytes
        self._may_rest_bytes = 0  # what the last request held, which may stay until another needs room
        self.counters = Counters()
        self.disk = disk or NoDisk()
        self._ring_limits = ring_limits
        self._share_prefixes = share_prefixes
        self._share_histories = share_histories
        self._habits = Habits()
        self._snapshot_bytes = new_state().snapshot().n_bytes
        self._clock = clock
        self._new_state = new_state
        self._shelf = Shelf(
            self.counters,
            max_entries_per_slot=max_entries_per_slot,
            clock=clock,
            choose_victim=choose_victim,
            disk=self.disk,
            habits=self._habits,
        )
        self._running: dict[int, RunningEntry] = {}
        self._n_numbers = 0
        self._codec = codec

    # -- a request's way ------------------------------------------------------------------------

    def plan(
        self,
        slot: SlotKey,
        prompt_ids: TokenIds,
        shape: PromptShape | None = None,
        *,
        is_guess: bool = False,
    ) -> Choice:
        """What to reuse for ``prompt_ids`` [n], n >= 1. Changes nothing.

        Args:
            is_guess: nobody has asked for the prompt yet: it must not cost what is remembered.
        """
        assert len(prompt_ids) > 0, "a prompt has at least one token"
        shape = shape or PromptShape()
        return selection.choose(
            self._find(slot, prompt_ids, shape),
            slot,
            prompt_ids,
            shape,
            free_bytes=self._free_bytes(),
            max_captures=self._max_captures(len(prompt_ids)),
            is_guess=is_guess,
        )

    def loss(self, choice: Choice) -> tuple[int, float] | None:
        """The state of the request's own slot that would have saved it most, had it not been evicted: the
        tokens it stood for, and how many seconds ago that was."""
        lost = self._shelf.losses.best(choice.slot, choice.prompt_ids, choice.plan.reusable_len)
        return None if lost is None else (lost.length, self._clock() - lost.at_s)

    def take(self, choice: Choice) -> RunningEntry:
        """Carry ``choice`` out: its entry moves, or is copied, into a running entry whose state
        stands after the first ``choice.plan.reusable_len`` prompt ids."""
        source = choice.source
        moved: Entry | None = None
        self._note(choice)
        if source is None or isinstance(choice.plan.mode, FullRefill):
            parts: Parts = TokenBuffer(), CheckpointRing(self._ring_limits), self._new_state()
        elif choice.forks or isinstance(source, RunningEntry):
            parts = copied(source, choice.slot, choice.plan.reusable_len)
            self.counters.n_forks += 1
        else:
            parts = self._moved(choice, source)
            moved = source
        running = RunningEntry.begin(
            self._next_number(),
            self._clock(),
            slot=choice.slot,
            metadata=self.metadata,
            parts=parts,
            shape=choice.shape,
            keep=choice.keep,
            moved=moved,
            known_shape=None if source is None or not choice.plan.reusable_len else source.shape,
            parent=choice.parent,
            standing=Standing.GUESS if choice.is_guess and moved is None else Standing.GOING_ON,
        )
        if moved is not None and moved.standing is Standing.GUESS and not choice.is_guess:
            self._shelf.supersede(moved)
        assert running.state.length == len(running) == choice.plan.reusable_len
        if choice.begins_inside_last_message:
            running.ring.add(running.state.snapshot())
        self._running[running.number] = running
        self._may_rest_bytes = 0
        self.counters.count_request(len(choice.prompt_ids), choice.plan.reusable_len)
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

        What it held beyond the budget to run may rest, as long as nothing else runs. What was deleted
        meanwhile is forgotten instead.
        """
        if running.standing is not Standing.GUESS:
            running.n_answers += 1
        entry = running.at_rest(self._clock())
        n_held = entry.n_own_bytes + entry.ring.n_bytes
        del self._running[running.number]
        if len(entry) > 0 and not running.is_forgotten:
            self.counters.n_saves += 1
            self._shelf.publish(entry)
            if entry.n_answers == ANSWERS_TO_TAKE_OVER:
                self._shelf.take_over(entry)
        else:
            self.counters.n_drops += 1
        self._may_rest_bytes = 0 if self._running else n_held
        self.enforce()

    def drop(self, running: RunningEntry) -> None:
        """Forget ``running``."""
        if self._running.pop(running.number, None) is not None:
            self.counters.n_drops += 1

    def drop_all_but(self, known: Iterable[RunningEntry]) -> None:
        """Forget the running entries that nobody feeds any more: after a fault some may be left over."""
        numbers = {running.number for running in known}
        for running in [running for running in self._running.values() if running.number not in numbers]:
            self.drop(running)

    def forget_unsound(self) -> None:
        """After a fault that may have touched anything: forget what runs and what is no longer sound."""
        self.drop_all_but(())
        self._shelf.remove_unsound()

    def make_room(self, n_bytes: int) -> None:
        """Let go of what is at rest until ``n_bytes`` less are held, or nothing is left to let go."""
        self._may_rest_bytes = 0
        wanted = self.n_bytes - n_bytes
        while self.n_bytes > wanted and self._shelf.evict_one(below=math.inf):
            pass
        self.enforce()

    # -- disk -----------------------------------------------------------------------------------

    def recall(self, slot: SlotKey, prompt_ids: TokenIds) -> None:
        """Before a plan: bring back from the disk what saves more than anything in memory does."""
        tried: set[str] = set()
        while (found := self.disk.best(slot, prompt_ids)) is not None:
            in_memory = self._find(slot, prompt_ids, PromptShape()).plan.reusable_len
            if (
                found.manifest.lineage in tried
                or found.state.length < in_memory + MIN_RECALL_TOKENS
                or self._bring_back(found)
            ):
                return
            tried.add(found.manifest.lineage)

    # -- memory ---------------------------------------------------------------------------------

    @property
    def budget_bytes(self) -> int:
        """What may be held; lowered where the system needs the room, it takes what rests above it along at
        the next :meth:`enforce`."""
        return self._budget_bytes

    @budget_bytes.setter
    def budget_bytes(self, n_bytes: int) -> None:
        self._budget_bytes, self._may_rest_bytes = n_bytes, 0

    @property
    def limit_bytes(self) -> int:
        """What may be held at this moment."""
        return max(self._budget_bytes, self._may_rest_bytes)

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
        nothing runs, for a conversation larger than the budget is served, and kept as far as it fits."""
        return not self._running or self.n_pinned_bytes + n_bytes <= self.budget_bytes

    def enforce(self) -> None:
        """Evict until the budget holds or nothing is left to let go. Call it as running entries grow.

        Where running entries alone exceed it, they keep the few checkpoints that they may be cut at.
        """
        n_running = sum(r.n_own_bytes for r in self._running.values())
        if self._running and n_running + self._snapshot_bytes > self.budget_bytes:
            self._habits.is_short()
        while self.n_bytes > self.limit_bytes:
            spare = least_useful_spare(self._running.values(), self._shelf.ledger, self._habits)
            if self._shelf.evict_one(below=math.inf if spare is None else spare.worth):
                continue
            if spare is None or spare.outweighs_rows:
                if self._shelf.evict_one(below=math.inf):
                    continue
                return  # what runs is larger than the budget: so much of it may be kept all the more later
            if not spare.entry.is_forgotten:
                self._shelf.losses.note(spare.entry, (spare.checkpoint,), self._clock())
            spare.entry.ring.remove(spare.checkpoint)
            self.counters.n_evicted_checkpoints += 1

    def check(self) -> None:
        """Assert all invariants over the whole store. For tests and debugging; walks everything."""
        self._shelf.check()
        check_all(tuple(self._conversations()), n_counted_bytes=self.n_bytes, budget_bytes=self.limit_bytes)

    # -- for people -----------------------------------------------------------------------------

    def slots(self, tenant: str | None = None) -> tuple[SlotInfo, ...]:
        """The slots of ``tenant``; a server that knows no tenants has only those of None."""
        return describe((c for c in self._conversations() if c.slot.tenant == tenant), self._clock())

    def delete(self, slot: SlotKey) -> int:
        """Forget a slot's entries, those that still run as soon as they end; returns how many."""
        resting = self._shelf.entries_of(slot)
        running = self._running_in(slot)
        self._shelf.losses.forget(slot)
        for entry in resting:
            self._shelf.remove(entry)
        for runner in running:
            runner.is_forgotten = True
        return max(len(resting) + len(running), self.disk.forget_slot(slot))

    def fork(self, slot: SlotKey, new_slot: SlotKey) -> int:
        """Copy what a slot has at rest under ``new_slot`` of the same tenant; returns how many entries."""
        assert slot != new_slot
        assert slot.tenant == new_slot.tenant
        entries = self._all_of(slot)
        for entry in entries:
            self._shelf.publish(entry.copy(self._next_number(), new_slot, self._clock()))
        self.enforce()
        return len(entries)

    # -- travel ---------------------------------------------------------------------------------

    @property
    def codec(self) -> StateCodec:
        """States to arrays and back."""
        assert self._codec is not None, "this store was made without a codec"
        return self._codec

    def contents(self, tenant: str | None) -> dict[str, Callable[[], bytes]]:
        """What ``tenant`` has at rest in memory, as files by name; to be read before the store is changed."""
        fingerprint = fingerprint_of(self.metadata, self.codec.layout)
        return {
            name: make
            for entry in self._shelf.entries()
            if entry.slot.tenant == tenant
            for name, make in contents(entry, fingerprint, self.codec).items()
        }

    def depart(self, slot: SlotKey, without: Collection[str] = ()) -> Departure | None:
        """A file of what ``slot`` has at rest, to be read piece by piece; None where there is nothing.
        :meth:`departed` ends it.

        Args:
            without: names of content that the other side has.
        """
        entries = self._all_of(slot)
        if not entries:
            return None
        departure = Departure(entries, self.metadata, self.codec, without)
        self._shelf.departures.append(departure)
        return departure

    def departed(self, departure: Departure) -> None:
        """``departure`` is read, or nobody wants the rest."""
        self._shelf.departures.remove(departure)

    def arrive(self, travellers: Sequence[Traveller], slot: SlotKey) -> int:
        """Put conversations to rest in ``slot``; returns how many.

        Raises:
            DamagedParcelError: their arrays are not those of this model; none of them is taken.
            BudgetError: together they are larger than the budget.
        """
        n_bytes = sum(traveller.n_bytes for traveller in travellers)
        if n_bytes > self.budget_bytes:
            raise BudgetError(n_bytes, self.budget_bytes)
        entries = [
            traveller.as_entry(
                self._next_number(),
                self._clock(),
                slot=slot,
                metadata=self.metadata,
                limits=self._ring_limits,
                codec=self.codec,
            )
            for traveller in travellers
        ]
        for entry in entries:
            self._shelf.publish(entry)
        self.enforce()
        return len(entries)

    # -- inside ---------------------------------------------------------------------------------

    def _find(self, slot: SlotKey, prompt_ids: TokenIds, shape: PromptShape) -> Candidate:
        return selection.find(
            prompt_ids,
            shape,
            self.metadata,
            own=(*self._shelf.entries_of(slot), *self._running_in(slot)),
            others=(c for c in self._conversations() if self._may_share(c.slot, slot)),
            kin_of=slot if self._share_histories else None,
        )

    def _may_share(self, theirs: SlotKey, mine: SlotKey) -> bool:
        """Whether a request of ``mine`` may begin with the system and tools block of ``theirs``."""
        is_of_tenant = self._share_prefixes and theirs.tenant == mine.tenant
        return theirs != mine and (is_of_tenant or theirs == SlotKey.PRELOADED)

    def _all_of(self, slot: SlotKey) -> tuple[Entry, ...]:
        """All that ``slot`` has at rest, what only the disk has brought back first."""
        live = {c.lineage for c in self._conversations()}
        for found in self.disk.all_of(slot):
            if found.manifest.lineage not in live:
                self._bring_back(found)
        return self._shelf.entries_of(slot)

    def _bring_back(self, found: Found) -> bool:
        """Put a conversation from the disk to rest in memory; False when it cannot be read."""
        recalled = self.disk.read(found)
        if recalled is None:
            return False
        for cut in self._shelf.entries_of(found.manifest.slot):
            if cut.lineage == found.manifest.lineage and len(cut) <= recalled.state.length:
                self._shelf.remove(cut)  # what memory has left of it
        entry = recalled.as_entry(
            self._next_number(),
            self._clock(),
            metadata=self.metadata,
            limits=self._ring_limits,
            goes_on=all(c.lineage != found.manifest.lineage for c in self._conversations()),
        )
        self._shelf.publish(entry)
        # Whoever asked for it holds as much in a moment, read back or read anew.
        self._shelf.evict_others(entry, self.budget_bytes)
        self._may_rest_bytes = self.n_bytes
        return True

    def _free_bytes(self) -> int:
        """What a copy may take: all but what runs and what was used of late."""
        n_fresh = self._shelf.n_bytes_used_since(self._clock() - PATIENCE_S, self._snapshot_bytes)
        return self.budget_bytes - sum(r.n_own_bytes for r in self._running.values()) - n_fresh

    def _max_captures(self, n_prompt: int) -> int:
        """States that reading a prompt may keep: so many that neither time nor memory is spent on them
        that reading needs itself."""
        in_time = max(MIN_CAPTURES, n_prompt // TOKENS_PER_CAPTURE)
        in_memory = self.budget_bytes // max(1, 2 * self._snapshot_bytes)
        return max(MIN_CAPTURES, min(in_time, in_memory))

    def _note(self, choice: Choice) -> None:
        """Learn where the prompt left the slot's own memory."""
        if choice.is_guess or choice.source is None or choice.source.slot != choice.slot:
            return
        left_at = choice.diverged_at
        whole = choice.plan.shared_token_prefix_len == len(choice.prompt_ids)
        place = (
            choice.source.shape.place_of(choice.plan.shared_token_prefix_len) if left_at or whole else None
        )
        self._habits.saw(choice.slot, place)

    def _moved(self, choice: Choice, entry: Entry) -> Parts:
        """The entry itself, cut to what the prompt shares with it."""
        self._shelf.remove(entry)
        if isinstance(choice.plan.mode, ReplayFromCheckpoint):
            entry.cut(choice.plan.reusable_len)
        return entry.ids, entry.ring, entry.state

    def _running_in(self, slot: SlotKey) -> tuple[RunningEntry, ...]:
        return tuple(r for r in self._running.values() if r.slot == slot)

    def _conversations(self) -> Iterator[Entry | RunningEntry]:
        yield from self._running.values()
        yield from self._shelf.entries()

    def _next_number(self) -> int:
        self._n_numbers += 1
        return self._n_numbers
