"""Drafters that know or do not know what they guess, and a depth that asks for drafts whatever they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from server.engine.drafting import Speculation
from server.engine.lookup import MAX_MATCH


@dataclass
class Oracle:
    """Knows the reply, and errs on purpose: of every draft the ``wrong_at``-th token, counted anew each
    time."""

    reply: Sequence[int]
    wrong_at: Sequence[int]
    n_added: int = 0
    n_matched: int = MAX_MATCH
    n_drafts: int = 0

    def add(self, token: int) -> None:  # noqa: ARG002
        self.n_added += 1

    def draft(self, n_tokens: int) -> list[int]:
        draft = list(self.reply[self.n_added : self.n_added + n_tokens])
        wrong = self.wrong_at[self.n_drafts % len(self.wrong_at)]
        self.n_drafts += 1
        if wrong < len(draft):
            draft[wrong] = 11 if draft[wrong] == 10 else 10
        return draft


@dataclass
class Always:
    """Drafts as deep as it is told, whatever it costs: each depth in turn."""

    sizes: Sequence[int] = (4,)
    n_rounds: int = 0
    fed: list[tuple[int, int]] = field(default_factory=list)

    def may_pay(self, n_replies: int, speculations: Sequence[Speculation]) -> bool:  # noqa: ARG002
        return True

    def choose(self, n_replies: int, speculations: Sequence[Speculation]) -> tuple[int, bool]:  # noqa: ARG002
        self.n_rounds += 1
        return self.sizes[self.n_rounds % len(self.sizes)], True

    def note(
        self,
        n_replies: int,
        n_tokens: int,
        seconds: float,  # noqa: ARG002
        *,
        has_head: bool = False,  # noqa: ARG002
    ) -> None:
        self.fed.append((n_replies, n_tokens))


@dataclass
class Guesser:
    """Guesses that the reply repeats its last token, then goes on anyhow: right at times, at any depth."""

    n_added: int = 0
    n_matched: int = MAX_MATCH
    _last: int = 0

    def add(self, token: int) -> None:
        self.n_added += 1
        self._last = token

    def draft(self, n_tokens: int) -> list[int]:
        n_same = self.n_added % (n_tokens + 1)
        return [self._last] * n_same + [7 + self.n_added % 40] * (n_tokens - n_same)
