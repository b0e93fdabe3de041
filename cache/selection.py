"""Chooses, among many entries, the one that saves a prompt the most work, and how it is used.

Looks only, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from cache.boundaries import MERGE_TOKENS, PromptShape, choose_captures
from cache.entry import Entry, Parent, RunningEntry
from cache.planner import (
    CrossTurnPrefixMetadata,
    ExactAppend,
    PrefixRestorePlan,
    ReplayFromCheckpoint,
    SlotKey,
    TokenIds,
    plan_prefix_reuse,
)

MIN_FORK_TOKENS = 32
"""A tail shorter than this is not worth a copy: feeding it again costs less."""

Origin = Literal["none", "slot", "running", "shared", "kindred"]
"""Where the reused ids come from: nowhere, an entry at rest of the slot, a request of the slot that
still runs, the system and tools block of another slot of the tenant, or all that a conversation of
another slot of the tenant has in common with the prompt."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the store chose for one prompt. Valid until the store is next changed.

    Attributes:
        slot: the request's slot.
        prompt_ids: uint32 [n], the ids to stand for.
        shape: the prompt's boundaries.
        plan: what is reused.
        origin: where from.
        forks: True when the entry stays whole and its prefix is copied, False when it moves.
        diverged_at: the position of the first id that differs from the entry's; None when none does.
        parted_at: where a state is kept because the prompt left its source there, or hardly after,
            although the next turn of that conversation would not have: the next prompt may part there
            again (a clock in the system prompt). None where it went on as expected.
        begins_inside_last_message: whether the entry ends past the start of the last user message, of
            which it knows no more than the header (it was read ahead): an edit of that message goes
            back to the entry's end.
        captures: positions to keep a state at while the rest is fed, ascending.
        keep: positions that the ring must not thin while this prompt is the conversation's last.
        parent: the conversation that the request's branches off, as far as its session may know.
        is_guess: whether nobody has asked for the prompt yet.
        is_affordable: whether nothing of worth goes for it. A guess that is not affordable is not read.
        source: the entry that is reused or, in a full refill, the nearest one; None when the slot is
            empty.
    """

    slot: SlotKey
    prompt_ids: TokenIds = field(repr=False)
    shape: PromptShape
    plan: PrefixRestorePlan
    origin: Origin
    forks: bool
    diverged_at: int | None
    parted_at: int | None
    begins_inside_last_message: bool
    captures: tuple[int, ...]
    keep: frozenset[int]
    parent: Parent | None
    is_guess: bool
    is_affordable: bool
    source: Entry | RunningEntry | None = field(repr=False)


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

    @property
    def n_copied_bytes(self) -> int:
        """About what a copy of what is reused takes."""
        if self.source is None or self.plan.reusable_len == 0:
            return 0
        return self.source.n_own_bytes * self.plan.reusable_len // len(self.source)

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

    def diverged_at(self, n_prompt: int) -> int | None:
        """Where a prompt of ``n_prompt`` ids left the source, if both go on after the shared ids."""
        shared = self.plan.shared_token_prefix_len
        return shared if 0 < shared < min(self.plan.old_represented_len, n_prompt) else None

    @property
    def rank(self) -> tuple[int, int, int]:
        """Orders candidates: most reused, then most shared (it explains best), then least left behind."""
        return (self.plan.reusable_len, self.plan.shared_token_prefix_len, -self.n_left_behind)


def find(
    prompt_ids: TokenIds,
    shape: PromptShape,
    metadata: CrossTurnPrefixMetadata,
    *,
    own: Iterable[Entry | RunningEntry],
    others: Iterable[Entry | RunningEntry],
    kin_of: SlotKey | None,
) -> Candidate:
    """What saves the prompt most; of equal ones the slot's own, whatever others hold.

    Args:
        own: conversations of the request's slot.
        others: of other slots, whose system and tools block may be shared.
        kin_of: the request's slot where it may share whole histories with others of its tenant, else None.
    """
    found = best(own_candidates(own, metadata, prompt_ids), metadata, prompt_ids)
    within = shape.system_end if kin_of is None else len(prompt_ids) - 1
    if found.plan.reusable_len >= within:
        return found
    lenders = [c for c in others if c.can_fork]
    foreign = [*foreign_candidates(lenders, metadata, prompt_ids, shape.system_end)]
    if kin_of is not None:
        kin = (c for c in lenders if c.slot.tenant == kin_of.tenant)
        foreign += kindred_candidates(kin, metadata, prompt_ids)
    return max((found, *foreign), key=lambda candidate: candidate.plan.reusable_len)


def own_candidates(
    conversations: Iterable[Entry | RunningEntry], metadata: CrossTurnPrefixMetadata, prompt_ids: TokenIds
) -> Iterable[Candidate]:
    """What the slot's own conversations, at rest and running, could save."""
    for c in conversations:
        if not c.can_fork:
            continue
        plan = plan_prefix_reuse(c.as_prefix(), metadata, prompt_ids, c.ring.lengths)
        if isinstance(c, Entry):
            yield Candidate(c, plan, "slot")
        elif plan.reusable_len > 0:
            yield Candidate(c, plan, "running")


def foreign_candidates(
    conversations: Iterable[Entry | RunningEntry],
    metadata: CrossTurnPrefixMetadata,
    prompt_ids: TokenIds,
    system_end: int,
) -> Iterable[Candidate]:
    """What entries of the tenant's other slots could save of the system and tools block.

    Only checkpoints within both system blocks count, and a plan tells of the entry what is reused and
    nothing more: how far the prompt agrees with what another session said is that session's secret.
    """
    for conversation in conversations:
        within = min(system_end, conversation.system_end)
        lengths = [n for n in conversation.ring.lengths if n <= within]
        if lengths:
            plan = plan_prefix_reuse(conversation.prefix(-1), metadata, prompt_ids, lengths)
            if plan.reusable_len > 0:
                n = plan.reusable_len
                yield Candidate(
                    conversation, replace(plan, shared_token_prefix_len=n, old_represented_len=n), "shared"
                )


def kindred_candidates(
    conversations: Iterable[Entry | RunningEntry],
    metadata: CrossTurnPrefixMetadata,
    prompt_ids: TokenIds,
) -> Iterable[Candidate]:
    """What entries of the tenant's other slots could save where they may be told of each other."""
    for conversation in conversations:
        plan = plan_prefix_reuse(conversation.prefix(-1), metadata, prompt_ids, conversation.ring.lengths)
        if plan.reusable_len > 0:
            yield Candidate(conversation, plan, "kindred")


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
    if candidate.origin in ("running", "shared", "kindred"):
        return True
    if source is None or plan.reusable_len == 0 or candidate.n_left_behind < MIN_FORK_TOKENS:
        return False
    if candidate.expects(plan.shared_token_prefix_len):
        return False
    if source.next_points:
        messages = source.ids.view[source.system_end : source.next_points[0]]
        if np.array_equal(messages, prompt_ids[system_end : system_end + len(messages)]):
            return False
    return candidate.n_copied_bytes <= free_bytes or candidate.n_left_behind > plan.reusable_len


def choose(
    found: Candidate,
    slot: SlotKey,
    prompt_ids: TokenIds,
    shape: PromptShape,
    *,
    free_bytes: int,
    max_captures: int,
    is_guess: bool = False,
) -> Choice:
    """What to do with ``found``: move or copy it, and where to keep states while the rest is fed."""
    plan, last_user = found.plan, shape.last_user_start
    diverged_at = found.diverged_at(len(prompt_ids))
    parted_at = _parted_at(found, diverged_at)
    appends = isinstance(plan.mode, ExactAppend)
    begins_inside = appends and last_user is not None and last_user < plan.reusable_len
    forks = should_fork(found, prompt_ids, shape.system_end, free_bytes=free_bytes)
    is_affordable = True
    if is_guess and plan.reusable_len > 0 and found.n_left_behind >= MIN_FORK_TOKENS:
        assert found.source is not None
        n_bytes = found.source.n_own_bytes * len(prompt_ids) // len(found.source)
        forks, is_affordable = True, n_bytes <= free_bytes
    keep = shape.keep
    if parted_at is not None:
        keep |= {parted_at}
    if begins_inside:
        keep |= {plan.reusable_len}
    if found.source is not None and plan.reusable_len > 0 and not forks:
        keep |= _still_kept(found.source, shape, plan.reusable_len)
    return Choice(
        slot=slot,
        prompt_ids=prompt_ids,
        shape=shape,
        plan=plan,
        origin=found.origin if plan.reusable_len > 0 else "none",
        forks=forks,
        diverged_at=diverged_at,
        parted_at=parted_at,
        begins_inside_last_message=begins_inside,
        captures=choose_captures(
            shape,
            start=plan.suffix_start,
            end=len(prompt_ids),
            parted_at=parted_at,
            max_count=max_captures,
            is_repeated=plan.shared_token_prefix_len == len(prompt_ids),
        ),
        keep=keep,
        parent=_parent(found) if forks else None,
        is_guess=is_guess,
        is_affordable=is_affordable,
        source=found.source,
    )


def _parent(found: Candidate) -> Parent | None:
    source = found.source
    if source is None or found.origin == "shared":
        return None
    return Parent(source.slot, source.number, source.lineage, found.plan.reusable_len)


def _parted_at(found: Candidate, diverged_at: int | None) -> int | None:
    if diverged_at is None or found.expects(diverged_at):
        return None
    return found.plan.reusable_len if found.is_held_near(diverged_at) else diverged_at


def _still_kept(moved: Entry | RunningEntry, shape: PromptShape, reusable_len: int) -> frozenset[int]:
    """What the ring must go on keeping of an entry that moves: all, where nothing is known of the
    prompt's shape; else what lies behind the last user message, if that is the same: it may yet be
    answered anew, though the reply has been read ahead of the next turn."""
    if shape == PromptShape():
        return moved.keep
    last_user = shape.last_user_start
    if last_user is None:
        return frozenset()
    return frozenset(p for p in moved.keep if last_user < p <= reusable_len)
