"""How many tokens are drafted for each reply: as many as pay, by what was measured, often none.

A round that checks T - 1 drafted tokens costs more than a plain step and yields one token more for each that
is accepted. Both are measured while the server runs: the time of a round by its shape, and for every reply
how often drafts came true, by how long a stretch of its text had stood before. Nothing here changes what is
written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.lookup import Lookup

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Tokens a round may feed to each reply: few sizes, so that each is soon measured, and compiled but once."""

MATCHES = (4, 8, 16, 32)
"""Lengths of a match from which drafts are told apart."""
_PRIOR = ((1.2, 3.0), (1.8, 3.0), (2.4, 3.0), (2.7, 3.0), (2.9, 3.0))
"""Of each class of matches, drafted tokens that came true and that were tried, before anything is
measured."""

_BELIEF = 3.0
"""So many tried tokens is worth what was seen in other replies."""
_RECENT = 32.0
"""Tried tokens that are remembered of a class: what is older fades."""
_LEAST_GAIN = 1.02
"""A draft must promise so much more than a plain step."""
APART_STEPS = 64
"""Plain steps after a round with drafts before replies stand in common buffers again (``model/batch.py``)."""
_GUESSED_PARTING = 0.1
"""How much slower steps are meanwhile, before it is measured."""
_SMOOTH = 0.2
_RETRY_AFTER = 64
"""Plain steps of a reply after which a draft that does not seem to pay may be tried all the same; doubled
each time."""
_MOST_RETRY = 4096


class Drafter(Protocol):
    """Guesses how one reply goes on."""

    @property
    def n_added(self) -> int:
        """Tokens of the reply that it knows."""
        ...

    @property
    def n_matched(self) -> int:
        """How sure it is: tokens in a row that stood before; 0 where it has no guess."""
        ...

    def add(self, token: int) -> None:
        """The reply has grown by ``token``."""
        ...

    def draft(self, n_tokens: int) -> list[int]:
        """What comes next, ``n_tokens`` at most."""
        ...


@dataclass
class Acceptance:
    """How often drafts came true.

    Attributes:
        general: of all replies; what one begins with, and learns into. None for the general one itself.
    """

    general: Acceptance | None = None
    _classes: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        known = _PRIOR if self.general is None else self.general._classes
        self._classes = [[_BELIEF * n_true / n_tried, _BELIEF] for n_true, n_tried in known]

    def rate(self, n_matched: int) -> float:
        """The share of drafted tokens that come true after a match of ``n_matched``, as far as known."""
        n_true, n_tried = self._classes[bisect_right(MATCHES, n_matched)]
        return n_true / n_tried

    def note(self, n_matched: int, n_drafted: int, n_accepted: int) -> None:
        """Of ``n_drafted`` tokens the first ``n_accepted`` came true; those behind a wrong one say
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
    """Seconds of a round, by the number of replies and the tokens that it feeds to each."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}

    def note(self, n_replies: int, n_tokens: int, seconds: float) -> None:
        """A round took ``seconds``. What stands out by far was held up by something else."""
        key = (n_replies, n_tokens)
        known = self._seconds.get(key)
        if known is None:
            self._seconds[key] = seconds
        else:
            self._seconds[key] += _SMOOTH * (min(seconds, 2 * known) - known)

    def seconds(self, n_replies: int, n_tokens: int) -> float | None:
        """What such a round takes; None where none was measured."""
        return self._seconds.get((n_replies, n_tokens))

    def ratio(self, n_replies: int, n_tokens: int) -> float:
        """What a round of ``n_tokens`` costs beside a plain step, measured or estimated from its
        neighbours."""
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
        return 1.0 + extra * _guessed_extra(n_tokens) / _guessed_extra(nearest)


def _guessed_extra(n_tokens: int) -> float:
    return 0.15 + 0.06 * (n_tokens - 1)


def _guessed_ratio(n_tokens: int) -> float:
    return 1.0 + _guessed_extra(n_tokens)


@dataclass
class Speculation:
    """One reply's drafts.

    Attributes:
        drafter: guesses.
        acceptance: how often it was right.
        n_drafted, n_accepted: tokens, since the reply began.
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
        """So long nothing was tried that a guess may be, though it does not seem to pay."""
        return self.drafter.n_matched > 0 and self.n_plain >= self.retry_after

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """The reply is ``token_ids`` by now."""
        for token in token_ids[self.drafter.n_added :]:
            self.drafter.add(token)

    def foresee(self, token: int) -> None:
        """``token`` was sampled, and will be fed."""
        self.drafter.add(token)

    def guess(self, n_tokens: int) -> list[int]:
        """A draft of ``n_tokens`` at most; :meth:`note` must tell what became of it."""
        self._n_matched = self.drafter.n_matched
        return self.drafter.draft(n_tokens)

    def note(self, n_drafted: int, n_accepted: int) -> None:
        """A round has shown how much of the last draft came true."""
        if not n_drafted:
            return
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        self.acceptance.note(self._n_matched, n_drafted, n_accepted)
        if self.may_retry:
            self.retry_after = min(2 * self.retry_after, _MOST_RETRY)
        self.n_plain = 0


class Depth(Protocol):
    """Decides how many tokens a round feeds to each reply."""

    def may_pay(self, n_replies: int, speculations: Sequence[Speculation]) -> bool:
        """Whether to ask for drafts at all, which makes the round wait for the tokens just sampled."""
        ...

    def choose(self, n_replies: int, speculations: Sequence[Speculation]) -> int:
        """Tokens to feed to each reply, the one just sampled included; 1 for a plain step."""
        ...

    def note(self, n_replies: int, n_tokens: int, seconds: float) -> None:
        """A round took ``seconds``."""
        ...


class MeasuredDepth:
    """The depth that promises the most tokens a second."""

    def __init__(self) -> None:
        self._costs = Costs()
        self._apart = Costs()  # of plain steps soon after a round with drafts, while replies stand apart
        self._n_plain = APART_STEPS
        self._n_replies = 0

    def may_pay(self, n_replies: int, speculations: Sequence[Speculation]) -> bool:
        return any(s.drafter.n_matched for s in speculations) and self.choose(n_replies, speculations) > 1

    def choose(self, n_replies: int, speculations: Sequence[Speculation]) -> int:
        rates = [s.acceptance.rate(s.drafter.n_matched) for s in speculations if s.drafter.n_matched]
        n_certain = n_replies - len(rates)

        def gain(size: int) -> float:
            n_tokens = n_certain + sum(_expected(rate, size) for rate in rates)
            return n_tokens / (n_replies * self._costs.ratio(n_replies, size))

        best = max(SIZES, key=gain)
        n_saved = (gain(best) - 1.0) * self._costs.ratio(n_replies, best)  # plain steps
        if gain(best) >= _LEAST_GAIN and n_saved > self._parting_cost(n_replies):
            return best
        if n_replies > 1:
            return 1  # to try would cost the others too
        return 2 if any(s.may_retry for s in speculations) else 1

    def note(self, n_replies: int, n_tokens: int, seconds: float) -> None:
        if n_replies > self._n_replies:  # who joins brings the others together again
            self._n_plain = APART_STEPS
        self._n_replies = n_replies
        is_plain = n_tokens == 1
        self._n_plain = self._n_plain + 1 if is_plain else 0
        is_apart = is_plain and n_replies > 1 and self._n_plain < APART_STEPS
        (self._apart if is_apart else self._costs).note(n_replies, n_tokens, seconds)

    def _parting_cost(self, n_replies: int) -> float:
        """What it costs, in plain steps, that replies which stood together stand apart after a round with
        drafts: so long each is attended to on its own."""
        if n_replies == 1:
            return 0.0
        together, apart = (costs.seconds(n_replies, 1) for costs in (self._costs, self._apart))
        slower = apart / together - 1.0 if together and apart else _GUESSED_PARTING
        return min(self._n_plain, APART_STEPS) * max(slower, 0.0)


def _expected(rate: float, size: int) -> float:
    """Tokens that a round of ``size`` yields, of whose drafts each comes true at ``rate`` if those before
    did."""
    return float(size) if rate >= 1.0 else (1.0 - rate**size) / (1.0 - rate)


NewDrafter = Callable[[Sequence[NDArray[np.uint32]], NDArray[np.uint32]], Drafter]
"""From what may be quoted, and the prompt, to what drafts a reply."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts are made, and how many.

    Attributes:
        new_drafter: makes what guesses for one reply.
        depth: decides, for all of them.
    """

    new_drafter: NewDrafter = Lookup
    depth: Depth = field(default_factory=MeasuredDepth)
    _general: Acceptance = field(default_factory=Acceptance)

    def begin(self, quotes: Sequence[NDArray[np.uint32]], text: NDArray[np.uint32]) -> Speculation:
        """The drafts of one reply to ``text``, which may quote ``quotes``."""
        return Speculation(self.new_drafter(quotes, text), Acceptance(self._general))
