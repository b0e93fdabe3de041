"""The requests that wait, and whose turn it is: fair between tenants, and between the sessions of one.

Every tenant has a virtual time that advances by the tokens its requests ask for; the tenant that is
furthest behind comes next, and among its sessions the one that is. One that was idle begins at the time
of those that were not: it has saved nothing up. So thirty requests of one client delay another's one by
a request, not by thirty.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from server.engine.ticket import Ticket
from server.events import GenerationRequest

MAX_PASSED = 16
"""A request that does not fit lets so many later ones pass; then they wait until it fits."""

EXPECTED_REPLY_TOKENS = 1024
"""Reply tokens that admission counts on: most replies are far shorter than their max_tokens."""


def expected_tokens(request: GenerationRequest) -> int:
    """Tokens of one sequence of ``request``, prompt and reply, that admission counts on."""
    return len(request.prompt.ids) + min(request.max_tokens, EXPECTED_REPLY_TOKENS)


@dataclass
class VirtualTimes:
    """How far each of several claimants has come, in tokens."""

    now: float = 0.0
    _by_claimant: dict[Hashable, float] = field(default_factory=dict)

    def of(self, claimant: Hashable) -> float:
        return max(self._by_claimant.get(claimant, 0.0), self.now)

    def charge(self, claimant: Hashable, n_tokens: int) -> None:
        """``claimant``, whose turn it was, gets ``n_tokens``."""
        self.now = self.of(claimant)
        self._by_claimant[claimant] = self.now + n_tokens
        if len(self._by_claimant) > _MANY:  # those that are not ahead need no note
            self._by_claimant = {c: t for c, t in self._by_claimant.items() if t > self.now}


class WaitingLine:
    """The tickets of requests that wait, in the order in which they may be admitted.

    Args:
        max_wait_s: a request that has waited longer is given up; None lets it wait.
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float], max_wait_s: float | None = None) -> None:
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._tickets: list[Ticket] = []  # in the order of arrival
        self._tenants = VirtualTimes()
        self._sessions: dict[str | None, VirtualTimes] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def n_of(self, tenant: str | None) -> int:
        """Requests of ``tenant`` that wait."""
        return sum(ticket.request.slot.tenant == tenant for ticket in self._tickets)

    def add(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)

    def remove(self, ticket: Ticket) -> None:
        self._tickets.remove(ticket)

    def clear(self) -> None:
        self._tickets.clear()

    def take(self, fits: Callable[[GenerationRequest], bool]) -> Ticket | None:
        """The next request that ``fits``, which no longer waits; None when it is nobody's turn.

        A request that does not fit lets others pass, but not for ever: see :data:`MAX_PASSED`.
        """
        passed: list[Ticket] = []
        for ticket in self._in_turn():
            if fits(ticket.request):
                for other in passed:
                    other.n_passed += 1
                self._charge(ticket.request)
                self._tickets.remove(ticket)
                return ticket
            if ticket.n_passed >= MAX_PASSED:
                return None
            passed.append(ticket)
        return None

    def take_expired(self) -> list[Ticket]:
        """Those that have waited too long, and wait no longer."""
        if self._max_wait_s is None or not self._tickets:
            return []
        since = self._clock() - self._max_wait_s
        expired = [ticket for ticket in self._tickets if ticket.arrived_at < since]
        self._tickets = [ticket for ticket in self._tickets if ticket.arrived_at >= since]
        return expired

    def _in_turn(self) -> list[Ticket]:
        """Those that wait, by whose turn it is; sorting keeps the order of arrival within a session."""
        return sorted(self._tickets, key=lambda ticket: self._turn(ticket.request))

    def _turn(self, request: GenerationRequest) -> tuple[float, float]:
        sessions = self._sessions.get(request.slot.tenant)
        return self._tenants.of(request.slot.tenant), 0.0 if sessions is None else sessions.of(request.slot)

    def _charge(self, request: GenerationRequest) -> None:
        n_tokens = expected_tokens(request) * request.n_replies
        self._tenants.charge(request.slot.tenant, n_tokens)
        self._sessions.setdefault(request.slot.tenant, VirtualTimes()).charge(request.slot, n_tokens)
        if len(self._sessions) > _MANY:
            waiting = {ticket.request.slot.tenant for ticket in self._tickets}
            self._sessions = {t: times for t, times in self._sessions.items() if t in waiting}


_MANY = 1024
