"""The prompts that are being prefilled: one chunk of one of them at every step, or a few tokens of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx
import numpy as np

from cache.entry import RunningEntry
from cache.planner import longest_common_token_prefix
from model.forward import Forward, Part
from model.state import State
from model.text.grammar.masks import Grammar
from server.engine.ticket import Prompted, Ticket
from server.events import Prefilling

OVERTAKE_FACTOR = 4
"""A prompt overtakes one that has so many times its own tokens left."""
TOGETHER_TOKENS = 128
"""Prompts that have no more left than that are read together: a pass over a few tokens of all takes hardly
longer than over those of one."""


@dataclass(eq=False)
class Prefill:
    """A prompt that is being prefilled.

    Attributes:
        running: the entry that is fed.
        captures: the positions whose states are worth keeping.
        ticket: the client that waits; None where nobody does, as when the next prompt is read ahead.
        grammar: what the replies' content must match, at its start.
        quotes: uint32 arrays, what the replies may quote besides the prompt.
        began_at: seconds of the engine's clock.
        n_reused: tokens that were not fed, because the entry had them.
        n_last: tokens that the last step fed.
        logits: [V], once the prompt is read.
        fault: what broke this prefill alone, if anything did.
    """

    request: Prompted
    running: RunningEntry
    captures: tuple[int, ...]
    ticket: Ticket | None = None
    grammar: Grammar | None = None
    quotes: tuple[np.ndarray, ...] = ()
    began_at: float = 0.0
    n_reused: int = field(init=False)
    n_last: int = 0
    logits: mx.array | None = None
    fault: BaseException | None = None

    def __post_init__(self) -> None:
        self.n_reused = len(self.running)

    @property
    def position(self) -> int:
        """Prompt tokens that the state stands for."""
        return len(self.running)

    @property
    def n_left(self) -> int:
        """Prompt tokens still to feed."""
        return len(self.request.prompt.ids) - self.position

    @property
    def is_over(self) -> bool:
        return self.n_left == 0 or self.fault is not None

    def progress(self, now: float) -> Prefilling:
        """What a client that wants to know is told."""
        n_prompt = len(self.request.prompt.ids)
        return Prefilling(n_prompt, self.n_reused, self.position, now - self.began_at)

    def next_chunk(self, n_tokens: int) -> tuple[np.ndarray, tuple[int, ...]]:
        """The next ids to feed, [at most n_tokens] uint32, and the capture positions among them."""
        start = self.position
        end = min(start + n_tokens, len(self.request.prompt.ids))
        return self.request.prompt.ids[start:end], tuple(p for p in self.captures if start < p <= end)


class Prefiller:
    """Owns the prefills under way, from :meth:`join` to :meth:`leave`.

    Prompts are read one after the other, because the next one may reuse what this one leaves behind. A short
    one overtakes a long one that has nothing for it; then every other chunk is the older one's. Several that
    have little left are read together, in one pass.

    Attributes:
        prefills: those under way, the oldest first.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.prefills: list[Prefill] = []
        self._fed: list[Prefill] = []  # by the last step, and not taken yet
        self._is_oldests_turn = False

    @property
    def entries(self) -> list[RunningEntry]:
        """What the prefills feed, or have just fed."""
        return [prefill.running for prefill in (*self.prefills, *self._fed)]

    @property
    def tickets(self) -> list[Ticket]:
        """The clients that wait for a prompt to be read."""
        return [prefill.ticket for prefill in self.prefills if prefill.ticket is not None]

    def may_join(self, prompt_ids: np.ndarray, n_suffix: Callable[[], int]) -> bool:
        """Whether a prompt of these ids may be read now: nothing else is, it overtakes whatever is, or all of
        them are short. It waits for what it would gain from.

        Args:
            n_suffix: tells how many of them must be fed; asked only where that decides.
        """
        if any(_gains_from(prompt_ids, prefill) for prefill in self.prefills):
            return False
        if all(len(prompt_ids) * OVERTAKE_FACTOR <= prefill.n_left for prefill in self.prefills):
            return True
        return self._are_short and n_suffix() <= TOGETHER_TOKENS

    def join(self, prefill: Prefill) -> None:
        """Begin to read a prompt."""
        self.prefills.append(prefill)

    def leave(self, prefill: Prefill) -> Prefill:
        """Take a prefill out where it stands; its entry goes with it."""
        self.prefills.remove(prefill)
        return prefill

    def abandon(self) -> None:
        """Forget all of them."""
        self.prefills, self._fed = [], []

    def take_fed(self) -> Prefill | None:
        """The next one of those that went on in the last step; None when all were taken."""
        return self._fed.pop(0) if self._fed else None

    def step(self, n_tokens: int) -> None:
        """Feed ``n_tokens`` at most of one prompt, or a few of each of several. :meth:`take_fed` tells which;
        those that are over have left.
        """
        together = len(self.prefills) > 1 and self._are_short
        fed = list(self.prefills) if together else [self._next()]
        n_tokens = self._forward.few_tokens if together else n_tokens
        for prefill in fed:
            prefill.n_last = 0
        try:
            self._feed(fed, n_tokens)
        except BaseException as fault:  # the library's panics are no Exceptions
            for prefill in fed:
                prefill.fault = fault
        for prefill in fed:
            if prefill.is_over:
                self.leave(prefill)
        self._fed = fed

    @property
    def _are_short(self) -> bool:
        """All have so little left that they are better read together."""
        is_able = self._forward.few_tokens > 0
        return is_able and all(prefill.n_left <= TOGETHER_TOKENS for prefill in self.prefills)

    def _next(self) -> Prefill:
        """The oldest and the shortest by turns."""
        self._is_oldests_turn = not self._is_oldests_turn
        return self.prefills[0] if self._is_oldests_turn else min(self.prefills, key=lambda p: p.n_left)

    def _feed(self, prefills: Sequence[Prefill], n_tokens: int) -> None:
        parts = [Part(cast(State, p.running.state), *p.next_chunk(n_tokens)) for p in prefills]
        if len(parts) == 1:
            (part,) = parts
            read = [self._forward.prefill(part.state, part.ids, capture_at=part.capture_at)]
        else:
            read = self._forward.prefill_together(parts)
        for prefill, part, own in zip(prefills, parts, read, strict=True):
            prefill.running.ids.extend(part.ids)
            for checkpoint in own.checkpoints:
                prefill.running.capture(checkpoint)
            prefill.logits, prefill.n_last = own.logits, len(part.ids)


def _gains_from(prompt_ids: np.ndarray, prefill: Prefill) -> bool:
    """Whether a prompt shares more with the one that is being read than what is read of it."""
    return longest_common_token_prefix(prompt_ids, prefill.request.prompt.ids) > prefill.position
