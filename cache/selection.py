"""Finds, among many entries, the one that saves a prompt the most work. Looks only, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cache.boundaries import MERGE_TOKENS, PromptShape, choose_captures
from cache.choice import Choice, Origin, diverged_at
from cache.entry import Entry, RunningEntry
from cache.planner import (
    CrossTurnPrefixMetadata,
    CrossTurnSlotId,
    PrefixRestorePlan,
    ReplayFromCheckpoint,
    TokenIds,
    plan_prefix_reuse,
)

MIN_FORK_TOKENS = 32
"""A tail shorter than this is not worth a copy: feeding it again costs less."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One entry and what it could save."""

    source: Entry | RunningEntry | None
    plan: PrefixRestorePlan
    origin: Origin

    @property
    def n_left_behind(self) -> int:
        """Tokens of the source that the prompt does not go on from."""
        return self.plan.old_represented_len - self.plan.reusable_len

    def expects(self, position: int) -> bool:
        """Whether the next turn of the source's conversation, or its last one again, may leave it at
        ``position``: at or after the first point that every next render shares."""
        points = () if self.source is None else self.source.next_points
        return len(points) > 0 and position >= points[0]

    def is_held_near(self, position: int) -> bool:
        """Whether the checkpoint that is reused stands so close before ``position`` that another one
        there would add nothing."""
        replays = isinstance(self.plan.mode, ReplayFromCheckpoint)
        return replays and position - self.plan.reusable_len < MERGE_TOKENS

    @property
    def rank(self) -> tuple[int, int, int]:
        """Orders candidates: most reused, then most shared (it explains best), then least left behind."""
        return (self.plan.reusable_len, self.plan.shared_token_prefix_len, -self.n_left_behind)


def own_candidates(
    entries: Iterable[Entry],
    running: Iterable[RunningEntry],
    metadata: CrossTurnPrefixMetadata,
    prompt_ids: TokenIds,
) -> Iterable[Candidate]:
    """What the slot's own entries, at rest and running, could save."""
    for entry in entries:
        plan = plan_prefix_reuse(entry.as_prefix(), metadata, prompt_ids, entry.ring.lengths)
        yield Candidate(entry, plan, "slot")
    for runner in running:
        plan = plan_prefix_reuse(runner.as_prefix(), metadata, prompt_ids, runner.ring.lengths)
        if plan.reusable_len > 0:
            yield Candidate(runner, plan, "running")


def foreign_candidates(
    conversations: Iterable[Entry | RunningEntry],
    metadata: CrossTurnPrefixMetadata,
    prompt_ids: TokenIds,
    system_end: int,
) -> Iterable[Candidate]:
    """What entries of the tenant's other slots could save of the system and tools block.

    Only checkpoints up to ``system_end`` count: nothing of what a session said is ever shared.
    """
    for conversation in conversations:
        lengths = [n for n in conversation.ring.lengths if n <= system_end]
        if lengths:
            plan = plan_prefix_reuse(conversation.prefix(-1), metadata, prompt_ids, lengths)
            if plan.reusable_len > 0:
                yield Candidate(conversation, plan, "shared")


def best(
    candidates: Iterable[Candidate], metadata: CrossTurnPrefixMetadata, prompt_ids: TokenIds
) -> Candidate:
    """The candidate that saves most; a full refill without a source when there is none."""
    nothing = Candidate(None, plan_prefix_reuse(None, metadata, prompt_ids, ()), "none")
    return max(candidates, key=lambda c: c.rank, default=nothing)


def should_fork(candidate: Candidate, prompt_ids: TokenIds, system_end: int, *, free_bytes: int) -> bool:
    """Whether the source stays whole and its prefix is copied, rather than moved.

    A prompt that leaves the entry at or after the first point every next render shares is the next
    turn of the same conversation, or its last turn again: what it leaves behind (a thought that the
    template strips, a reply that is made anew) will not come back, so the state moves. So does one
    that changed the system block alone and goes on with the same messages (a clock). A prompt that
    leaves earlier is another conversation or an edit, and the one left behind may go on: it is kept,
    unless it is shorter than :data:`MIN_FORK_TOKENS`, or there is no free room for the copy and the
    copy would preserve less than it duplicates.
    """
    source, plan = candidate.source, candidate.plan
    if candidate.origin in ("running", "shared"):
        return True
    if source is None or plan.reusable_len == 0 or candidate.n_left_behind < MIN_FORK_TOKENS:
        return False
    if candidate.expects(plan.shared_token_prefix_len):
        return False
    if source.next_points:
        messages = source.ids.view[source.system_end : source.next_points[0]]
        if np.array_equal(messages, prompt_ids[system_end : system_end + len(messages)]):
            return False
    n_copied_bytes = source.n_own_bytes * plan.reusable_len // plan.old_represented_len
    return n_copied_bytes <= free_bytes or candidate.n_left_behind > plan.reusable_len


def choose(
    found: Candidate,
    slot: CrossTurnSlotId,
    prompt_ids: TokenIds,
    tenant: str | None,
    shape: PromptShape,
    *,
    free_bytes: int,
    max_captures: int,
) -> Choice:
    """What to do with ``found``: move or copy it, and where to keep states while the rest is fed."""
    parted_at = diverged_at(found.plan, len(prompt_ids))
    if parted_at is not None and found.expects(parted_at):
        parted_at = None
    elif parted_at is not None and found.is_held_near(parted_at):
        parted_at = found.plan.reusable_len
    return Choice(
        slot=slot,
        tenant=tenant,
        prompt_ids=prompt_ids,
        shape=shape,
        plan=found.plan,
        origin=found.origin if found.plan.reusable_len > 0 else "none",
        forks=should_fork(found, prompt_ids, shape.system_end, free_bytes=free_bytes),
        parted_at=parted_at,
        captures=choose_captures(
            shape,
            start=found.plan.suffix_start,
            end=len(prompt_ids),
            parted_at=parted_at,
            max_count=max_captures,
        ),
        source=found.source,
    )
