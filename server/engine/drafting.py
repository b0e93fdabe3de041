"""Decides how many tokens to draft for each reply: as many as pay by measurement, often none.

A step that verifies T - 1 drafted tokens takes longer than a plain step, and yields one more token for each
that is accepted. Both are measured while the server runs: the duration of a step by its shape, and for every
reply the acceptance rate by the length of the match on which a draft is based. Nothing here changes what a
reply says.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
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
HEAD = -1
"""In the place of a match length: a draft of the model's own multi-token prediction head."""
_PRIOR = ((1.2, 3.0), (1.8, 3.0), (2.4, 3.0), (2.7, 3.0), (2.9, 3.0), (1.8, 3.0))
"""Accepted and drafted tokens of each class before anything is measured; the last is that of :data:`HEAD`."""

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
_GUESSED_HEAD = 0.25
"""The cost of a token that the head drafts, in plain steps, before it is measured."""
_SMOOTH = 0.2
_FIRST = 3
"""Steps of a kind of which the fastest counts."""
_HEAD_RESTS = 16
"""Steps for which it is not asked again whether the head's drafts pay, after they did not seem to."""
_MOST_HEADED = 64
"""Steps with the head's drafts before a plain step is measured again: the head could draft for ever."""
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
        """The estimated probability that a token drafted after a match of ``n_matched``, or by the
        :data:`HEAD`, is accepted."""
        n_true, n_tried = self._classes[_class_of(n_matched)]
        return n_true / n_tried

    def note(self, n_matched: int, n_drafted: int, n_accepted: int) -> None:
        """Of ``n_drafted`` tokens the first ``n_accepted`` were accepted; those after a wrong one say
        nothing."""
        if self.general is not None:
            self.general.note(n_matched, n_drafted, n_accepted)
        seen = self._classes[_class_of(n_matched)]
        seen[0] += n_accepted
        seen[1] += min(n_accepted + 1, n_drafted)
        if seen[1] > _RECENT:
            seen[0] *= _RECENT / seen[1]
            seen[1] = _RECENT


def _class_of(n_matched: int) -> int:
    return -1 if n_matched == HEAD else bisect_right(MATCHES, n_matched)


class Costs:
    """How long a step takes, by the number of replies and the tokens that it feeds to each.

    Args:
        guessed_per_draft: what making a drafted token costs, in plain steps, before it is measured.
    """

    def __init__(self, guessed_per_draft: float = 0.0) -> None:
        self._seconds: dict[tuple[int, int], float] = {}
        self._n_noted: Counter[tuple[int, int]] = Counter()
        self._per_draft = guessed_per_draft

    def note(self, n_replies: int, n_tokens: int, seconds: float) -> None:
        """A step took ``seconds``. Outliers are clipped: something else held them up."""
        key = (n_replies, n_tokens)
        known = self._seconds.get(key)
        self._n_noted[key] += 1
        if known is None:
            self._seconds[key] = seconds
        elif self._n_noted[key] <= _FIRST:  # the first of a kind may have built something
            self._seconds[key] = min(known, seconds)
        else:
            self._seconds[key] += _SMOOTH * (min(seconds, 2 * known) - known)

    def seconds(self, n_replies: int, n_tokens: int) -> float | None:
        """How long such a step takes; None if none was measured."""
        return self._seconds.get((n_replies, n_tokens))

    def is_known(self, n_replies: int, n_tokens: int) -> bool:
        """Whether enough of such steps were measured to trust the measurement."""
        return self._n_noted[n_replies, n_tokens] >= _FIRST

    def reach(self, n_replies: int) -> int:
        """The largest size worth trying: a guess of what a step costs is not trusted far from what was
        measured."""
        return 2 * max([size for n, size in self._seconds if n == n_replies and size > 1], default=2)

    def ratio(self, n_replies: int, n_tokens: int, plain: float | None = None) -> float:
        """The duration of a step of ``n_tokens`` over that of a plain step, measured or estimated from the
        nearest size.

        Args:
            plain: that of a plain step, where it is not measured here.
        """
        plain = plain or self._seconds.get((n_replies, 1))
        if n_tokens == 1 or not plain:
            return 1.0 if n_tokens == 1 else 1.0 + self._guessed_extra(n_tokens)
        measured = self._seconds.get((n_replies, n_tokens))
        if measured is not None:
            return measured / plain
        sizes = [size for size in SIZES[1:] if (n_replies, size) in self._seconds]
        if not sizes:
            return 1.0 + self._guessed_extra(n_tokens)
        nearest = min(sizes, key=lambda size: abs(size - n_tokens))
        extra = self._seconds[(n_replies, nearest)] / plain - 1.0
        if n_tokens > nearest:  # no savings are assumed beyond what was measured
            return 1.0 + extra * (n_tokens - 1) / (nearest - 1)
        return 1.0 + extra * self._guessed_extra(n_tokens) / self._guessed_extra(nearest)

    def _guessed_extra(self, n_tokens: int) -> float:
        return 0.15 + (0.06 + self._per_draft) * (n_tokens - 1)


@dataclass
class Speculation:
    """One reply's drafts.

    Attributes:
        drafter: makes them from texts.
        has_head: the model can make them, too, by its multi-token prediction head.
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
    has_head: bool = False

    _drafted_on: int = 0

    @property
    def may_retry(self) -> bool:
        """Whether a draft may be tried although it does not seem to pay."""
        return self.basis != 0 and self.n_plain >= self.retry_after

    @property
    def basis(self) -> int:
        """What a draft would be based on: the length of a match, or the :data:`HEAD` where that is accepted
        more often; 0 for nothing."""
        n_matched = self.drafter.n_matched
        if not self.has_head:
            return n_matched
        is_better = n_matched and self.acceptance.rate(n_matched) >= self.acceptance.rate(HEAD)
        return n_matched if is_better else HEAD

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Show the drafter the reply so far, ``token_ids``."""
        for token in token_ids[self.drafter.n_added :]:
            self.drafter.add(token)

    def foresee(self, token: int) -> None:
        """Show the drafter ``token``, which is sampled and not yet fed."""
        self.drafter.add(token)

    def guess(self, n_tokens: int) -> list[int]:
        """A draft of at most ``n_tokens`` from texts; :meth:`note` must be told the outcome. Where the basis
        is the :data:`HEAD`, which works for all replies at once, it is empty."""
        self._drafted_on = self.basis
        return [] if self._drafted_on == HEAD else self.drafter.draft(n_tokens)

    def note(self, n_drafted: int, n_accepted: int) -> None:
        """Of the last draft, ``n_drafted`` tokens, the first ``n_accepted`` were accepted."""
        if not n_drafted:
            return
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        self.acceptance.note(self._drafted_on, n_drafted, n_accepted)
        if self.may_retry:
            self.retry_after = min(2 * self.retry_after, _MOST_RETRY)
        self.n_plain = 0


class Depth(Protocol):
    """Decides how many tokens a step feeds to each reply."""

    def may_pay(self, n_replies: int, speculations: Sequence[Speculation]) -> bool:
        """Whether to draft at all, for which the step must wait for the tokens just sampled."""
        ...

    def choose(self, n_replies: int, speculations: Sequence[Speculation]) -> tuple[int, bool]:
        """Tokens to feed to each reply, the sampled one included, 1 for a plain step; and whether the head is
        to draft for the replies of which it is the basis."""
        ...

    def note(self, n_replies: int, n_tokens: int, seconds: float, *, has_head: bool = False) -> None:
        """A step took ``seconds``, in which the head drafted or did not."""
        ...


class MeasuredDepth:
    """The depth that promises the most tokens per second.

    Drafts continue the tokens just sampled, so a step that may have some begins by waiting for those, while
    a plain step is launched before the one ahead of it is over. If the tokens break the match, the wait was
    for nothing; its cost is measured like the rest.
    """

    def __init__(self) -> None:
        self._costs = Costs()
        self._headed = Costs(_GUESSED_HEAD)  # of steps for which the head drafted
        self._apart = Costs()  # of plain steps soon after drafts, while replies have buffers of their own
        self._waited = Costs()  # of plain steps that waited for sampled tokens and got no draft
        self._has_waited = False
        self._n_plain = APART_STEPS
        self._n_replies = 0
        self._n_steps = 0
        self._head_rests_until = 0  # steps
        self._n_headed = 0  # steps with the head's drafts since a plain one

    def may_pay(self, n_replies: int, speculations: Sequence[Speculation]) -> bool:
        self._n_steps += 1
        for way in self._ways(n_replies, speculations):
            if self._promises(n_replies, _rates(speculations, way), way):
                return True
            if way:
                self._head_rests_until = self._n_steps + _HEAD_RESTS
        return self._may_try(n_replies, speculations)

    def choose(self, n_replies: int, speculations: Sequence[Speculation]) -> tuple[int, bool]:
        self._has_waited = True
        best: tuple[float, int, bool] = (0.0, 1, False)
        for has_head in self._ways(n_replies, speculations):
            rates = [rate for rate, _ in _rates(speculations, has_head)]
            size, gain = self._best(n_replies, rates, has_head)
            cost = self._ratio(n_replies, size, has_head)
            # The wait is over in any case: a plain step is no cheaper now than one that waited.
            if self._is_worth(n_replies, gain * cost, cost / self._wait_cost(n_replies)):
                best = max(best, (gain, size, has_head))
        _, size, has_head = best
        if size == 1 and self._may_try(n_replies, speculations):
            return 2, any(s.basis == HEAD for s in speculations)
        return size, has_head

    def note(self, n_replies: int, n_tokens: int, seconds: float, *, has_head: bool = False) -> None:
        if n_replies != self._n_replies:
            self._head_rests_until = 0
        if n_replies > self._n_replies:  # a reply that joins brings all into common buffers again
            self._n_plain = APART_STEPS
        self._n_replies = n_replies
        is_plain = n_tokens == 1
        self._n_headed = self._n_headed + 1 if has_head else 0 if is_plain else self._n_headed
        self._n_plain = self._n_plain + 1 if is_plain else 0
        is_apart = is_plain and n_replies > 1 and self._n_plain < APART_STEPS
        costs = self._waited if is_plain and self._has_waited else self._apart if is_apart else self._costs
        (self._headed if has_head else costs).note(n_replies, n_tokens, seconds)
        self._has_waited = False

    def _ways(self, n_replies: int, speculations: Sequence[Speculation]) -> list[bool]:
        """Whether drafts can be had without the head, and with it: False, True, or both.

        With the head only where plain steps were measured of late, which nothing else would make sure of.
        """
        bases = {s.basis for s in speculations}
        is_measured = self._costs.is_known(n_replies, 1) and self._n_headed < _MOST_HEADED
        may_head = is_measured and self._n_steps >= self._head_rests_until
        return ([False] if bases - {0, HEAD} else []) + ([True] if HEAD in bases and may_head else [])

    def _promises(self, n_replies: int, rates: Sequence[tuple[float, float]], has_head: bool) -> bool:
        """Whether drafts promise more tokens in the same time, before the sampled tokens are known."""
        # Every match holds for the sampled token as likely as for one behind it; the head always drafts.
        p_none = math.prod(1.0 - p_holds for _, p_holds in rates)
        size, _ = self._best(n_replies, [rate for rate, _ in rates], has_head)
        n_tokens = n_replies + sum(p_holds * (_expected(rate, size) - 1.0) for rate, p_holds in rates)
        cost = (1.0 - p_none) * self._ratio(n_replies, size, has_head) + p_none * self._wait_cost(n_replies)
        return self._is_worth(n_replies, n_tokens / n_replies, cost)

    def _best(self, n_replies: int, rates: Sequence[float], has_head: bool) -> tuple[int, float]:
        """The size of the round that promises most, and how many times the tokens of plain steps that is in
        the same time."""

        def gain(size: int) -> float:
            n_tokens = n_replies - len(rates) + sum(_expected(rate, size) for rate in rates)
            return n_tokens / (n_replies * self._ratio(n_replies, size, has_head))

        reach = (self._headed if has_head else self._costs).reach(n_replies)
        size = max((size for size in SIZES if size <= reach), key=gain)
        return size, gain(size)

    def _ratio(self, n_replies: int, size: int, has_head: bool) -> float:
        """The cost of a round, in plain steps."""
        if not has_head:
            return self._costs.ratio(n_replies, size)
        return self._headed.ratio(n_replies, size, self._costs.seconds(n_replies, 1))

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


def _rates(speculations: Sequence[Speculation], has_head: bool) -> list[tuple[float, float]]:
    """For each reply that gets a draft, how likely each of its tokens is accepted, and how likely there still
    is one once the sampled token is known."""
    rates = []
    for speculation in speculations:
        basis = speculation.basis
        if basis == HEAD and not has_head:
            continue
        if basis:
            rate = speculation.acceptance.rate(basis)
            rates.append((rate, 1.0 if basis == HEAD else rate))
    return rates


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
