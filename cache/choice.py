"""What the store chose for one prompt, and why: read by the engine, explained to the client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from cache.boundaries import PromptShape
from cache.entry import Entry, RunningEntry, new_lineage
from cache.ids import TokenBuffer
from cache.planner import (
    CrossTurnPrefixMetadata,
    CrossTurnSlotId,
    ExactAppend,
    FullRefill,
    PrefixRestorePlan,
    TokenIds,
)
from cache.ring import CheckpointRing
from cache.state import SequenceState

Origin = Literal["none", "slot", "running", "shared"]
"""Where the reused ids come from: nowhere, an entry at rest of the slot, a request of the slot that
still runs, or the system and tools block of another slot of the tenant."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One plan and the entry it is for. Valid until the store is next changed.

    Attributes:
        slot: the request's slot.
        tenant: the request's tenant.
        prompt_ids: uint32 [n], the ids to stand for.
        shape: the prompt's boundaries.
        plan: what is reused.
        origin: where from.
        forks: True when the entry stays whole and its prefix is copied, False when it moves.
        parted_at: where a state is kept because the prompt left its source there, or hardly after,
            although the next turn of that conversation would not have: the next prompt may part there
            again (a clock in the system prompt). None where it went on as expected.
        captures: positions to keep a state at while the rest is fed, ascending.
        source: the entry that is reused or, in a full refill, the nearest one; None when the slot is
            empty.
    """

    slot: CrossTurnSlotId
    tenant: str | None
    prompt_ids: TokenIds = field(repr=False)
    shape: PromptShape
    plan: PrefixRestorePlan
    origin: Origin
    forks: bool
    parted_at: int | None
    captures: tuple[int, ...]
    source: Entry | RunningEntry | None = field(repr=False)

    @property
    def diverged_at(self) -> int | None:
        """The position of the first id that differs from the entry's; None when none does."""
        return diverged_at(self.plan, len(self.prompt_ids))

    @property
    def begins_inside_last_message(self) -> bool:
        """Whether the entry ends past the start of the last user message, of which it knows no more
        than the header (it was read ahead): an edit of that message goes back to the entry's end."""
        start = self.shape.last_user_start
        appends = isinstance(self.plan.mode, ExactAppend)
        return appends and start is not None and start < self.plan.reusable_len

    @property
    def keep(self) -> frozenset[int]:
        """Positions that the ring must not thin while this prompt is the conversation's last."""
        keep = self.shape.keep if self.parted_at is None else self.shape.keep | {self.parted_at}
        return keep | {self.plan.reusable_len} if self.begins_inside_last_message else keep

    def begin(
        self,
        number: int,
        now_s: float,
        *,
        metadata: CrossTurnPrefixMetadata,
        ids: TokenBuffer,
        ring: CheckpointRing,
        state: SequenceState,
        moved: Entry | None = None,
    ) -> RunningEntry:
        """The running entry of this request, at the state it begins with.

        Args:
            moved: the entry that goes on in it; None where the conversation is a new one.
        """
        # A prompt that says nothing of its shape keeps what is known of its conversation.
        known = moved if self.shape == PromptShape() else None
        return RunningEntry(
            number=number,
            lineage=new_lineage() if moved is None else moved.lineage,
            slot=self.slot,
            tenant=self.tenant,
            metadata=metadata,
            ids=ids,
            ring=ring,
            keep=self.keep | (frozenset() if moved is None else self._still_kept(moved)),
            next_points=self.shape.shared_points if known is None else known.next_points,
            system_end=self.shape.system_end if known is None else known.system_end,
            created_at=now_s if moved is None else moved.created_at,
            n_hits=0 if moved is None else moved.n_hits + 1,
            live=state,
        )

    def _still_kept(self, moved: Entry) -> frozenset[int]:
        """What the ring must go on keeping of the entry that moves: all, where nothing is known of the
        prompt's shape; else what lies behind the last user message, if that is the same: it may yet
        be answered anew, though the reply has been read ahead of the next turn."""
        if self.shape == PromptShape():
            return moved.keep
        last_user = self.shape.last_user_start
        if last_user is None:
            return frozenset()
        return frozenset(p for p in moved.keep if last_user < p <= self.plan.reusable_len)

    def reason(self, where: Callable[[int], str] = "token {}".format) -> str:
        """One sentence: what was reused and why no more.

        Args:
            where: names a position for a reader, e.g. ``message 4 (user)``.
        """
        plan = self.plan
        if plan.mismatch is not None:
            return f"The retained entry has another {plan.mismatch}, so nothing of it can be reused."
        if self.source is None:
            return "Nothing is retained for this session yet."
        if plan.shared_token_prefix_len == 0:
            return "The prompt differs from everything retained at its first token."
        reused = self._reused()
        left = self.diverged_at
        if left is not None:
            return f"The prompt leaves the retained entry in {where(left)}; {reused}."
        if plan.shared_token_prefix_len == len(self.prompt_ids):
            return f"The whole prompt is retained, and its last token must be fed anew; {reused}."
        return f"The prompt continues the retained entry; {reused}."

    def _reused(self) -> str:
        plan = self.plan
        if isinstance(plan.mode, FullRefill):
            return "no checkpoint lies before that point"
        whence = {
            "none": "",
            "slot": "",
            "running": ", copied from a request that still runs",
            "shared": ", copied from the system prompt of another session",
        }[self.origin]
        return f"{plan.reusable_len} tokens are reused{whence}"


def diverged_at(plan: PrefixRestorePlan, n_prompt: int) -> int | None:
    """Where a prompt of ``n_prompt`` ids left its entry, if both go on after the shared ids."""
    shared = plan.shared_token_prefix_len
    return shared if 0 < shared < min(plan.old_represented_len, n_prompt) else None
