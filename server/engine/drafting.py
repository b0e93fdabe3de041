"""Decides how many tokens to draft for each reply: as many as pay by measurement, often none.

A step that verifies T - 1 drafted tokens takes longer than a plain step, and yields one more token for each
that is accepted. Both are measured while the server runs: the duration of a step by its shape, and for every
reply the acceptance rate by the length of the match on which a draft is based. Nothing here changes what a
reply says.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.lookup import Lookup

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of tokens that a step may feed to each reply: few, so that each is soon measured and rarely
compiled."""

MATCHES = (4, 8, 16, 32)
"""Match lengths at which the classes of drafts begin."""
_PRIOR = ((1.2, 3.0), (1.8, 3.0), (2.4, 3.0), (2.7, 3.0), (2.9, 3.0))
"""Accepted and drafted tokens of each class before anything is measured."""

_BELIEF = 3.0
"""The weight, in drafted tokens, of what was measured in other replies."""
_RECENT = 32.0
"""Drafted tokens of a class that count: older ones fade."""
_LEAST_GAIN = 1.02
"""The speed-up over a plain step from which a draft is made."""
APART_STEPS = 64
"""Plain steps after a step with drafts before replies share buffers again (``model/batch.py``)."""
_GUESSED_WAIT = 1.2
"""The cost of a plain step that waited for the tokens before it, before it is measured."""
_GUESSED_PARTING = 0.1
"""How much slower those steps are, before it is measured."""
_SMOOTH = 0.2
_RETRY_AFTER = 64
"""Plain steps of a reply after which a draft is tried although it does not seem to pay; doubles each time."""
_MOST_RETRY = 4096


class Drafter(Protocol):
    """Drafts how one reply continues."""

    @property
    def n_added(self) -> int:
        """Tokens of the reply that it has seen."""
        ...

    @property
    def n_matched(self) -> int:
        """The length of the match on which a draft would be based; 0 if it has none."""
        ...

    def add(self, token: int) -> None:
        """``token`` is the reply's next."""
        ...

    def draft(self, n_tokens: int) -> list[int]:
        """The tokens that may come next, at most ``n_tokens``."""
        ...


@dataclass
class Acceptance:
    """How often drafted tokens are accepted.

    Attributes:
        general: that of all replies, from which one reply starts and to which it adds; None for the general
            one itself.
    """

    general: Acceptance | None = None
    _classes: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        known = _PRIOR if self.general is None else self.general._classes
        self._classes = [[_BELIEF * n_true / n_tried, _BELIEF] for n_true, n_tried in known]

    def rate(self, n_matched: int) -> float:
        """The estimated probability that a token drafted after a match of ``n_matched`` is accepted."""
        n_true, n_tried = self._classes[bisect_right(MATCHES, n_matched)]
        return n_true / n_tried

    def note(self, n_matched: int, n_drafted: int, n_accepted: int) -> None:
        """Of ``n_drafted`` tokens the first ``n_accepted`` were accepted; those after a wrong one say
        nothing."""
        if self.general is not None:
            self.general.note(n_matched, n_drafted, n_accepted)
        seen = self._classes[bisect_right(MATCHES, n_matched)]
        seen[0] += n_accepted
        seen[1] += min(n_accepted + 1, n_drafted)
        if seen[1] > _RECENT:
            seen[0] *= _RECENT / seen[1]
            seen[1] = _RECENT


class Costs:
    """How long a step takes, by the number of replies and the tokens that it feeds to each."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}

    def note(self, n_replies: int, n_tokens: int, seconds: float) -> None:
        """A step took ``seconds``. Outliers are clipped: something else held them up."""
        key = (n_replies, n_tokens)
        known = self._seconds.get(key)
        if known is None:
            self._seconds[key] = seconds
        else:
            self._seconds[key] += _SMOOTH * (min(seconds, 2 * known) - known)

    def seconds(self, n_replies: int, n_tokens: int) -> float | None:
        """How long such a step takes; None if none was measured."""
        return self._seconds.get((n_replies, n_tokens))

    def reach(self, n_replies: int) -> int:
        """The largest size worth trying: a guess of what a step costs is not trusted far from what was
        measured."""
        return 2 * max([size for n, size in self._seconds if n == n_replies and size > 1], default=2)

    def ratio(self, n_replies: int, n_tokens: int) -> float:
        """The duration of a step of ``n_tokens`` over that of a plain step, measured or estimated from the
        nearest size."""
        plain = self._seconds.get((n_replies, 1))
        if n_tokens == 1 or not plain:
            return 1.0 if n_tokens == 1 else _guessed_ratio(n_tokens)
        measured = self._seconds.get((n_replies, n_tokens))
        if measured is not None:
            return measured / plain
        sizes = [size for size in SIZES[1:] if (n_replies, size) in self._seconds]
        if not sizes:
            return _guessed_ratio(n_tokens)
        nearest = min(sizes, key=lambda size: abs(size - n_tokens))
        extra = self._seconds[(n_replies, nearest)] / plain - 1.0
        if n_tokens > nearest:  # no savings are assumed beyond what was measured
            return 1.0 + extra * (n_tokens - 1) / (nearest - 1)
        return 1.0 + extra * _guessed_extra(n_tokens) / _guessed_extra(nearest)


def _guessed_extra(n_tokens: int) -> float:
    return 0.15 + 0.06 * (n_tokens - 1)


def _guessed_ratio(n_tokens: int) -> float:
    return 1.0 + _guessed_extra(n_tokens)


@dataclass
class Speculation:
    """One reply's drafts.

    Attributes:
        drafter: makes them.
        acceptance: how often they are accepted.
        n_drafted, n_accepted: tokens, since the reply began.
        n_plain: plain steps since the last draft.
        retry_after: so many of them before a draft is tried although it does not seem to pay.
    """

    drafter: Drafter
    acceptance: Acceptance = field(default_factory=Acceptance)
    n_drafted: int = 0
    n_accepted: int = 0
    n_plain: int = 0
    retry_after: int = _RETRY_AFTER

    _n_matched: int = 0

    @property
    def may_retry(self) -> bool:
        """Whether a draft may be tried although it does not seem to pay."""
        return self.drafter.n_matched > 0 and self.n_plain >= self.retry_after

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Show the drafter the reply so far, ``token_ids``."""
        for token in token_ids[self.drafter.n_added :]:
            self.drafter.add(token)

    def foresee(self, token: int) -> None:
        """Show the drafter ``token``, which is sampled and not yet fed."""
        self.drafter.add(token)

    def guess(self, n_tokens: int) -> list[int]:
        """A draft of at most ``n_tokens``; :meth:`note` must be told the outcome."""
        self._n_matched = self.drafter.n_matched
        return self.drafter.draft(n_tokens)

    def note(self, n_drafted: int, n_accepted: int) -> None:
        """Of the last draft, ``n_drafted`` tokens, the first ``n_accepted`` were accepted."""
        if not n_drafted:
            return
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        self.acceptance.note(self._n_matched, n_drafted, n_accepted)
        if self.may_retry:
            self.retry_after = min(2 * self.retry_after, _MOST_RETRY)
        self.n_plain = 0


class Depth(Protocol):
    """Decides how many tokens a step feeds to each reply."""

    def may_pay(self, n_replies: int, speculations: Sequence[Speculation]) -> bool:
        """Whether to draft at all, for which the step must wait for the tokens just sampled."""
        ...

    def choose(self, n_replies: int, speculations: Sequence[Speculation]) -> int:
        """Tokens to feed to each reply, the sampled one included; 1 for a plain step."""
        ...

    def note(self, n_replies: int, n_tokens: int, seconds: float) -> None:
        """A step took ``seconds``."""
        ...


class MeasuredDepth:
    """The depth that promises the most tokens per second.

    Drafts continue the tokens just sampled, so a step that may have some begins by waiting for those, while
    a plain step is launched before the one ahead of it is over. If the tokens break the match, the wait was
    for nothing; its cost is measured like the rest.
    """

    def __init__(self) -> None:
        self._costs = Costs()
        self._apart = Costs()  # of plain steps soon after drafts, while replies have buffers of their own
        self._waited = Costs()  # of plain steps that waited for sampled tokens and got no draft
        self._has_waited = False
        self._n_plain = APART_STEPS
        self._n_replies = 0

    def may_pay(self, n_replies: int, speculations: Sequence[Speculation]) -> bool:
        rates = [s.acceptance.rate(s.drafter.n_matched) for s in speculations if s.drafter.n_matched]
        if not rates:
            return False
        # Every match holds for the sampled token as likely as for one behind it.
        p_none = math.prod(1.0 - rate for rate in rates)
        size, _ = self._best(n_replies, rates)
        n_tokens = n_replies + sum(rate * (_expected(rate, size) - 1.0) for rate in rates)
        cost = (1.0 - p_none) * self._costs.ratio(n_replies, size) + p_none * self._wait_cost(n_replies)
        return self._is_worth(n_replies, n_tokens / n_replies, cost) or self._may_try(n_replies, speculations)

    def choose(self, n_replies: int, speculations: Sequence[Speculation]) -> int:
        self._has_waited = True
        rates = [s.acceptance.rate(s.drafter.n_matched) for s in speculations if s.drafter.n_matched]
        size, gain = self._best(n_replies, rates)
        cost = self._costs.ratio(n_replies, size)
        # The wait is over in any case: a plain step is no cheaper now than one that waited.
        if self._is_worth(n_replies, gain * cost, cost / self._wait_cost(n_replies)):
            return size
        return 2 if self._may_try(n_replies, speculations) else 1

    def note(self, n_replies: int, n_tokens: int, seconds: float) -> None:
        if n_replies > self._n_replies:  # a reply that joins brings all into common buffers again
            self._n_plain = APART_STEPS
        self._n_replies = n_replies
        is_plain = n_tokens == 1
        self._n_plain = self._n_plain + 1 if is_plain else 0
        is_apart = is_plain and n_replies > 1 and self._n_plain < APART_STEPS
        costs = self._waited if is_plain and self._has_waited else self._apart if is_apart else self._costs
        costs.note(n_replies, n_tokens, seconds)
        self._has_waited = False

    def _best(self, n_replies: int, rates: Sequence[float]) -> tuple[int, float]:
        """The size of the round that promises most, and how many times the tokens of plain steps that is in
        the same time."""

        def gain(size: int) -> float:
            n_tokens = n_replies - len(rates) + sum(_expected(rate, size) for rate in rates)
            return n_tokens / (n_replies * self._costs.ratio(n_replies, size))

        size = max((size for size in SIZES if size <= self._costs.reach(n_replies)), key=gain)
        return size, gain(size)

    def _is_worth(self, n_replies: int, n_tokens: float, cost: float) -> bool:
        """Whether a round that brings each reply ``n_tokens`` pays, which costs as much as ``cost`` plain
        steps."""
        return n_tokens >= _LEAST_GAIN * cost and n_tokens - cost > self._parting_cost(n_replies)

    @staticmethod
    def _may_try(n_replies: int, speculations: Sequence[Speculation]) -> bool:
        """Whether to draft though it does not seem to pay: not where it would cost others, too."""
        return n_replies == 1 and any(s.may_retry for s in speculations)

    def _wait_cost(self, n_replies: int) -> float:
        """Of a plain step that waited for the sampled tokens, in plain steps."""
        waited, plain = self._waited.seconds(n_replies, 1), self._costs.seconds(n_replies, 1)
        return max(waited / plain, 1.0) if waited and plain else _GUESSED_WAIT

    def _parting_cost(self, n_replies: int) -> float:
        """The cost of drafts, in plain steps, that comes after them: until replies share buffers again, the
        attention of each is a call of its own."""
        if n_replies == 1:
            return 0.0
        together, apart = (costs.seconds(n_replies, 1) for costs in (self._costs, self._apart))
        slower = apart / together - 1.0 if together and apart else _GUESSED_PARTING
        return min(self._n_plain, APART_STEPS) * max(slower, 0.0)


def _expected(rate: float, size: int) -> float:
    """The expected tokens of a step of ``size``, if each drafted token is accepted with probability ``rate``
    once those before it are."""
    return float(size) if rate >= 1.0 else (1.0 - rate**size) / (1.0 - rate)


NewDrafter = Callable[[Sequence[NDArray[np.uint32]], NDArray[np.uint32]], Drafter]
"""Makes the drafter of a reply from texts that it may quote, and its prompt."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts are made, and how long they are.

    Attributes:
        new_drafter: makes the drafter of one reply.
        depth: decides on the length, for all replies together.
    """

    new_drafter: NewDrafter = Lookup
    depth: Depth = field(default_factory=MeasuredDepth)
    _general: Acceptance = field(default_factory=Acceptance)

    def begin(self, quotes: Sequence[NDArray[np.uint32]], text: NDArray[np.uint32]) -> Speculation:
        """The drafts of one reply to the prompt ``text``; it may quote ``quotes``."""
        return Speculation(self.new_drafter(quotes, text), Acceptance(self._general))
