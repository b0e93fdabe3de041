"""Prefills prompts: at every step a chunk of one of them, or what several have left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx
import numpy as np

from cache.entry import RunningEntry
from cache.planner import longest_common_token_prefix
from model.forward import Forward, Part, Prefilled, shares_of_pass
from model.state import State
from model.text.grammar.masks import Grammar
from server.engine.admission import Ticket
from server.events import Prefilling, Prompted

log = logging.getLogger("crossturn.engine")

OVERTAKE_FACTOR = 4
"""A prompt overtakes one that has at least so many times its length left."""
TOGETHER_TOKENS = 128
"""Where a device gains nothing with longer ones, prompts with at most so many tokens left are prefilled
together: a forward pass over a few tokens of several takes hardly longer than over those of one."""


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

    def note(self, part: Part, read: Prefilled | BaseException) -> None:
        """Take over what came of a part; raises it if it is a fault."""
        if isinstance(read, BaseException):
            raise read
        self.running.ids.extend(part.ids)
        for checkpoint in read.checkpoints:
            self.running.capture(checkpoint)
        self.logits, self.n_last = read.logits, len(part.ids)


class Prefiller:
    """Owns the prefills in progress, from :meth:`join` to :meth:`leave`.

    What is fed in one step is one forward pass: several prompts that gain nothing from each other, as far as
    the pass has room, or one of them. The oldest prompt is in front in every second pass, the one with the
    fewest tokens left in the others: a long prompt gets at least every second pass however many short ones
    arrive, and a short one waits for no more than one pass of a long one. A prompt that would reuse what
    another one is about to leave waits for it.

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

    def may_join(self, prompt_ids: np.ndarray, n_tokens: int, n_suffix: Callable[[], int]) -> bool:
        """Whether a prompt of these ids may be prefilled now: it overtakes those in progress, or has room
        beside them in the next pass. It waits for a prompt from which it would gain.

        Args:
            n_tokens: those of a pass.
            n_suffix: returns how many of ``prompt_ids`` must be fed; called only if that decides.
        """
        if any(_gains_from(prompt_ids, prefill) for prefill in self.prefills):
            return False
        n_ahead = sum(p.n_left for p in self.prefills if p.n_left < len(prompt_ids) * OVERTAKE_FACTOR)
        if self._forward.reads_ragged:
            return n_ahead < min(n_tokens, self._forward.part_tokens)
        return n_ahead == 0 or (self._are_short and n_suffix() <= TOGETHER_TOKENS)

    @property
    def n_left(self) -> int:
        """Tokens of all prompts in progress that are still to be fed."""
        return sum(prefill.n_left for prefill in self.prefills)

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
        """Feed at most ``n_tokens``, of one prompt or of several. Prefills that are over have left;
        :meth:`take_fed` returns those that were fed.

        A fault in a pass over several fails none of them: each is then fed alone, and fails by its own fault.
        """
        shares = self._next_pass(n_tokens)
        fed = [prefill for prefill, _ in shares]
        parts = [Part(cast(State, p.running.state), *p.next_chunk(share)) for p, share in shares]
        for prefill, part, read in zip(fed, parts, self._read(parts), strict=True):
            prefill.n_last = 0
            try:
                prefill.note(part, read)
            except BaseException as fault:  # panics of Rust libraries are no Exceptions
                prefill.fault = fault
            if prefill.is_over:
                self.leave(prefill)
        self._fed = fed

    def _next_pass(self, n_tokens: int) -> list[tuple[Prefill, int]]:
        """The prompts of the next pass, and how many tokens of each it feeds at most."""
        if not self._forward.reads_ragged and len(self.prefills) > 1 and self._are_short:
            return [(prefill, self._forward.few_tokens) for prefill in self.prefills]
        order = self._next_order()
        if self._forward.reads_ragged:
            n_rows = self._forward.part_tokens
            shares = shares_of_pass([p.n_left for p in order], min(n_tokens, n_rows), n_rows)
            chosen = [(prefill, share) for prefill, share in zip(order, shares, strict=True) if share]
            if len(chosen) > 1:
                return chosen
        return [(order[0], n_tokens)]

    def _next_order(self) -> list[Prefill]:
        """All by what they have left; in every second pass the oldest is in front."""
        self._is_oldests_turn = not self._is_oldests_turn
        by_length = sorted(self.prefills, key=lambda prefill: prefill.n_left)
        if not self._is_oldests_turn:
            return by_length
        oldest = self.prefills[0]
        return [oldest, *(prefill for prefill in by_length if prefill is not oldest)]

    @property
    def _are_short(self) -> bool:
        """Whether all have so few tokens left that they are better fed together on any device."""
        is_able = self._forward.few_tokens > 0
        return is_able and all(prefill.n_left <= TOGETHER_TOKENS for prefill in self.prefills)

    def _read(self, parts: Sequence[Part]) -> list[Prefilled | BaseException]:
        """What comes of each part, in one pass or, if that fails, alone."""
        if len(parts) > 1:
            try:
                return list(self._forward.prefill_together(parts))
            except BaseException as fault:
                log.warning("a pass over %d prompts failed; each is read alone", len(parts), exc_info=fault)
            for part in parts:
                part.state.truncate(part.state.position)
        return [self._read_alone(part) for part in parts]

    def _read_alone(self, part: Part) -> Prefilled | BaseException:
        try:
            return self._forward.prefill(part.state, part.ids, capture_at=part.capture_at)
        except BaseException as fault:
            return fault


def _gains_from(prompt_ids: np.ndarray, prefill: Prefill) -> bool:
    """Whether ``prefill`` is still to leave a state that a prompt can go on from: a checkpoint in what both
    share, or its end. What they share beyond that, such as a message's first tokens, is of no use."""
    n_common = longest_common_token_prefix(prompt_ids, prefill.request.prompt.ids)
    left_at = (*prefill.captures, len(prefill.request.prompt.ids))
    return any(prefill.position < position <= n_common for position in left_at)
