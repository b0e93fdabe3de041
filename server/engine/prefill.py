"""Prefills prompts: at every step a chunk of one of them, or the few remaining tokens of several."""

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
from server.engine.admission import Ticket
from server.events import Prefilling, Prompted

OVERTAKE_FACTOR = 4
"""A prompt overtakes one that has at least so many times its length left."""
TOGETHER_TOKENS = 128
"""Prompts with at most so many tokens left are prefilled together: a forward pass over a few tokens of
several takes hardly longer than over those of one."""


@dataclass(eq=False)
class Prefill:
    """A prompt that is being prefilled.

    Attributes:
        running: the entry that is fed.
        captures: positions at which checkpoints are kept.
        ticket: the client's request; None for a prompt that is read ahead.
        grammar: what the replies' content must match, in its start state.
        quotes: uint32 arrays; texts other than the prompt that the replies may quote.
        began_at: seconds of the engine's clock.
        n_reused: tokens that the entry already had.
        n_last: tokens that the last step fed.
        logits: [V], the last token's, once the whole prompt is fed.
        fault: what broke this prefill, if anything did.
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
        """Prompt tokens that the state represents."""
        return len(self.running)

    @property
    def n_left(self) -> int:
        """Prompt tokens still to feed."""
        return len(self.request.prompt.ids) - self.position

    @property
    def is_over(self) -> bool:
        return self.n_left == 0 or self.fault is not None

    def progress(self, now: float) -> Prefilling:
        """The event for clients that ask for progress."""
        n_prompt = len(self.request.prompt.ids)
        return Prefilling(n_prompt, self.n_reused, self.position, now - self.began_at)

    def next_chunk(self, n_tokens: int) -> tuple[np.ndarray, tuple[int, ...]]:
        """The next ids to feed, [at most n_tokens] uint32, and the capture positions among them."""
        start = self.position
        end = min(start + n_tokens, len(self.request.prompt.ids))
        return self.request.prompt.ids[start:end], tuple(p for p in self.captures if start < p <= end)


class Prefiller:
    """Owns the prefills in progress, from :meth:`join` to :meth:`leave`.

    Prompts are prefilled one after the other, because the next one may reuse the state that this one leaves.
    A short prompt overtakes a long one from which it gains nothing; the two then take turns. Several prompts
    with few tokens left are prefilled together, in one forward pass.

    Attributes:
        prefills: those in progress, oldest first.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.prefills: list[Prefill] = []
        self._fed: list[Prefill] = []  # in the last step, and not taken yet
        self._is_oldests_turn = False

    @property
    def entries(self) -> list[RunningEntry]:
        """The entries that the prefills feed, or have just fed."""
        return [prefill.running for prefill in (*self.prefills, *self._fed)]

    @property
    def tickets(self) -> list[Ticket]:
        """The clients' requests among them."""
        return [prefill.ticket for prefill in self.prefills if prefill.ticket is not None]

    def may_join(self, prompt_ids: np.ndarray, n_suffix: Callable[[], int]) -> bool:
        """Whether a prompt of these ids may be prefilled now: it is the only one, overtakes all others, or is
        as short as they are. It waits for a prompt from which it would gain.

        Args:
            n_suffix: returns how many of them must be fed; called only if that decides.
        """
        if any(_gains_from(prompt_ids, prefill) for prefill in self.prefills):
            return False
        if all(len(prompt_ids) * OVERTAKE_FACTOR <= prefill.n_left for prefill in self.prefills):
            return True
        return self._are_short and n_suffix() <= TOGETHER_TOKENS

    def join(self, prefill: Prefill) -> None:
        """Add a prompt."""
        self.prefills.append(prefill)

    def leave(self, prefill: Prefill) -> Prefill:
        """Remove a prefill, finished or not, together with its entry."""
        self.prefills.remove(prefill)
        return prefill

    def abandon(self) -> None:
        """Discard all prefills."""
        self.prefills, self._fed = [], []

    def take_fed(self) -> Prefill | None:
        """One of the prefills that the last step fed, each once; None when there are no more."""
        return self._fed.pop(0) if self._fed else None

    def step(self, n_tokens: int) -> None:
        """Feed at most ``n_tokens`` of one prompt, or a few of each of several. Prefills that are over have
        left; :meth:`take_fed` returns those that were fed.
        """
        together = len(self.prefills) > 1 and self._are_short
        fed = list(self.prefills) if together else [self._next()]
        n_tokens = self._forward.few_tokens if together else n_tokens
        for prefill in fed:
            prefill.n_last = 0
        try:
            self._feed(fed, n_tokens)
        except BaseException as fault:  # panics of Rust libraries are no Exceptions
            for prefill in fed:
                prefill.fault = fault
        for prefill in fed:
            if prefill.is_over:
                self.leave(prefill)
        self._fed = fed

    @property
    def _are_short(self) -> bool:
        """Whether all have so few tokens left that they are better fed together."""
        is_able = self._forward.few_tokens > 0
        return is_able and all(prefill.n_left <= TOGETHER_TOKENS for prefill in self.prefills)

    def _next(self) -> Prefill:
        """The oldest and the shortest, in turn."""
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
    """Whether a prompt shares more with ``prefill`` than has been fed of it yet."""
    return longest_common_token_prefix(prompt_ids, prefill.request.prompt.ids) > prefill.position
