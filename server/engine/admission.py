"""Decides which requests are accepted, how long they wait, and which one is admitted next.

Scheduling is fair between tenants, and between the sessions of a tenant. Every tenant has a virtual time,
which advances by the tokens that its requests ask for. The tenant that is furthest behind is next, and among
its sessions the one that is furthest behind. Idle time earns no credit: a tenant that was idle starts at the
virtual time of the others. So thirty requests of one client delay a request of another client by one, not by
thirty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from cache.store import Store
from server.events import Emit, Failed, GenerationRequest, WarmRequest
from server.settings import EngineSettings, SecondsOrNone

MAX_PASSED = 16
"""A request that does not fit lets so many later ones pass; then all wait until it fits."""

EXPECTED_REPLY_TOKENS = 1024
"""Reply tokens for which admission reserves memory: most replies are far shorter than their max_tokens."""

_RING_STATES = 3
"""Checkpoints of a prompt that its replies keep together, however little room there is."""

_MANY = 1024
"""Tenants or sessions whose virtual time is noted before those that do not matter are dropped."""

MINUTE_S = 60.0
RETRY_AFTER_S = 5.0
"""When a refused client should try again: after about the time of a short reply."""


class LoopOptions(EngineSettings):
    """The operator's options for the loop, under the same names, and those that only tests and benchmarks
    set.

    Attributes:
        prefill_tokens: tokens prefilled in one step while nothing is being decoded; None for as many as take
            about a second.
        shared_prefill_tokens: the same while replies are being decoded, which pause for it; None for as many
            as take about a quarter of a second.
        checks_store: whether to check the store's invariants whenever the loop falls idle.
    """

    stream_interval_seconds: SecondsOrNone = 0.0
    prefill_tokens: int | None = None
    shared_prefill_tokens: int | None = None
    checks_store: bool = False

    @classmethod
    def of(cls, settings: EngineSettings) -> Self:
        """The operator's options."""
        return cls.model_validate({name: getattr(settings, name) for name in EngineSettings.model_fields})


@dataclass(slots=True, eq=False)
class Ticket:
    """A client's request, where its events go, and how far it has come.

    Attributes:
        arrived_at: seconds of the engine's clock.
        is_planned: the plan was emitted.
        is_answered: a part of a reply was emitted.
        is_over: the last event was emitted.
        n_passed: how many later requests were admitted because this one did not fit.
        n_starts: how often the request was begun; twice if memory ran out the first time.
    """

    request: GenerationRequest
    emit: Emit
    arrived_at: float = 0.0
    is_planned: bool = False
    is_answered: bool = False
    is_over: bool = False
    n_passed: int = 0
    n_starts: int = 0


class Admission:
    """Owns the requests that wait, and the prompts to read ahead when none does.

    Args:
        options: the limits.
        store: knows the memory budget.
        state_bytes: returns the bytes of the state of so many tokens.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        options: LoopOptions,
        store: Store,
        state_bytes: Callable[[int], int],
        clock: Callable[[], float],
    ) -> None:
        self._options = options
        self._store = store
        self._state_bytes = state_bytes
        self.line = WaitingLine(clock, options.queue_seconds)
        self.allowances = Allowances(options.tokens_per_minute, clock)
        self._ahead: deque[WarmRequest] = deque()

    def add(self, ticket: Ticket) -> Failed | None:
        """Queue a request; returns the refusal if it is not accepted."""
        refusal = self._refusal(ticket.request)
        if refusal is None:
            self.line.add(ticket)
        return refusal

    def take(
        self,
        decoding: Sequence[Ticket],
        prefilling: Sequence[Ticket],
        n_unfed: int,
        may_join: Callable[[GenerationRequest], bool],
    ) -> Ticket | None:
        """The next request that fits beside what runs, which no longer waits; None if there is none.

        Args:
            decoding: the ticket of each reply that is being decoded.
            prefilling: those of the prompts that are being prefilled.
            n_unfed: tokens of these that are still to be fed.
            may_join: whether a request's prompt may be prefilled now.
        """
        n_coming = self._state_bytes(n_unfed) - self._state_bytes(0)
        return self.line.take(
            lambda request: self._fits(request, decoding, prefilling, n_coming) and may_join(request)
        )

    def add_ahead(self, request: WarmRequest) -> None:
        """Queue a prompt to read ahead; it replaces an earlier one of the same slot."""
        self._ahead = deque(other for other in self._ahead if other.slot != request.slot)
        self._ahead.append(request)

    @property
    def has_ahead(self) -> bool:
        """Whether a prompt is queued to be read ahead."""
        return bool(self._ahead)

    def take_ahead(self) -> WarmRequest:
        """The next prompt to read ahead."""
        return self._ahead.popleft()

    def clear(self) -> None:
        """Forget everything that waits."""
        self.line.clear()
        self._ahead.clear()

    def take_expired(self) -> list[Ticket]:
        """The requests that have waited too long, which no longer wait."""
        return self.line.take_expired()

    @property
    def too_late(self) -> Failed:
        """How a request ends that has waited too long."""
        message = f"No capacity became free within {self._options.queue_seconds:g} s."
        return Failed(message, "overloaded", retry_after_s=RETRY_AFTER_S)

    def width(self, request: GenerationRequest) -> int:
        """How many of the replies of ``request`` are decoded at a time; 0 if the budget does not hold even
        one next to the prompt's entry, from which the others branch."""
        n, limits = request.n_replies, self._options
        most = min(n, limits.max_running, limits.max_running_per_key or n)
        if n == 1:
            return 1
        n_ring_bytes = _RING_STATES * self._state_bytes(0)
        n_held = max(self._store.budget_bytes - n_ring_bytes, 0) // self._bytes_of(request)
        return n if n <= min(most, n_held) else max(min(most, n_held - 1), 0)

    def _refusal(self, request: GenerationRequest) -> Failed | None:
        limits, tenant = self._options, request.slot.tenant
        if len(self.line) >= limits.max_waiting:
            message = f"{len(self.line)} requests are already waiting."
            return Failed(message, "overloaded", retry_after_s=RETRY_AFTER_S)
        if limits.max_waiting_per_key is not None and self.line.n_of(tenant) >= limits.max_waiting_per_key:
            message = f"{self.line.n_of(tenant)} requests of this API key are already waiting."
            return Failed(message, "rate_limited", retry_after_s=RETRY_AFTER_S)
        wait_s = self.allowances.wait_s(tenant)
        if wait_s > 0:
            message = f"This API key has used up its {limits.tokens_per_minute} tokens per minute."
            return Failed(message, "rate_limited", retry_after_s=wait_s)
        if self.width(request) == 0:
            message = (
                f"'n': several replies to this prompt need at least twice {self._bytes_of(request)} bytes, "
                f"and the memory budget is {self._store.budget_bytes} bytes."
            )
            return Failed(message, "invalid", param="n")
        return None

    def _fits(
        self,
        request: GenerationRequest,
        decoding: Sequence[Ticket],
        prefilling: Sequence[Ticket],
        n_coming_bytes: int,
    ) -> bool:
        """Whether the batch and the memory have room beside what runs and the bytes that it will still grow
        by. With nothing else running, any request fits."""
        if not decoding and not prefilling:
            return True
        limits, tenant, width = self._options, request.slot.tenant, self.width(request)
        if self._n_rows(decoding, prefilling) + width > limits.max_running:
            return False
        if limits.max_running_per_key is not None:
            n_own = self._n_rows(_tickets_of(tenant, decoding), _tickets_of(tenant, prefilling))
            if n_own + width > limits.max_running_per_key:
                return False
        n_states = width + (width < request.n_replies)
        return self._store.can_admit(self._bytes_of(request) * n_states + n_coming_bytes)

    def _n_rows(self, decoding: Sequence[Ticket], prefilling: Sequence[Ticket]) -> int:
        """Rows of the batch that are taken, or will be once the prompts are prefilled."""
        return len(decoding) + sum(self.width(ticket.request) for ticket in prefilling)

    def _bytes_of(self, request: GenerationRequest) -> int:
        """The memory that one reply of ``request`` is expected to need, its prompt included."""
        return self._state_bytes(expected_tokens(request))


def _tickets_of(tenant: str | None, tickets: Iterable[Ticket]) -> list[Ticket]:
    return [ticket for ticket in tickets if ticket.request.slot.tenant == tenant]


def expected_tokens(request: GenerationRequest) -> int:
    """The expected tokens of one reply of ``request``, its prompt included."""
    return len(request.prompt.ids) + min(request.max_tokens, EXPECTED_REPLY_TOKENS)


class WaitingLine:
    """The requests that wait, and whose turn it is.

    Args:
        clock: seconds, monotonic.
        max_wait_s: how long a request may wait; None for as long as it takes.
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
        """How many requests of ``tenant`` wait."""
        return len(_tickets_of(tenant, self._tickets))

    def add(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)

    def remove(self, ticket: Ticket) -> None:
        self._tickets.remove(ticket)

    def clear(self) -> None:
        self._tickets.clear()

    def take(self, fits: Callable[[GenerationRequest], bool]) -> Ticket | None:
        """The next request that ``fits``, which no longer waits; None if there is none.

        A request that does not fit lets :data:`MAX_PASSED` later ones pass, and no more.
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
        """The requests that have waited too long, which no longer wait."""
        if self._max_wait_s is None or not self._tickets:
            return []
        since = self._clock() - self._max_wait_s
        expired = [ticket for ticket in self._tickets if ticket.arrived_at < since]
        self._tickets = [ticket for ticket in self._tickets if ticket.arrived_at >= since]
        return expired

    def _in_turn(self) -> list[Ticket]:
        """The requests in the order of their turns, those of one session in the order of arrival."""
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


@dataclass
class VirtualTimes:
    """The virtual time of each claimant, in tokens."""

    now: float = 0.0
    _by_claimant: dict[Hashable, float] = field(default_factory=dict)

    def of(self, claimant: Hashable) -> float:
        return max(self._by_claimant.get(claimant, 0.0), self.now)

    def charge(self, claimant: Hashable, n_tokens: int) -> None:
        """Advance ``claimant``, whose turn it was, by ``n_tokens``."""
        self.now = self.of(claimant)
        self._by_claimant[claimant] = self.now + n_tokens
        if len(self._by_claimant) > _MANY:  # the others are at `now` anyway
            self._by_claimant = {c: t for c, t in self._by_claimant.items() if t > self.now}


@dataclass
class _Account:
    n_tokens: float
    filled_at: float


class Allowances:
    """A token account for each tenant, which refills evenly.

    A request is accepted while the account is not empty, and charged as it is served: it may overdraw the
    account, and the next request waits longer for that.

    Args:
        tokens_per_minute: how fast an account refills, and the most that it holds; None for no limit.
        clock: seconds, monotonic.
    """

    def __init__(self, tokens_per_minute: int | None, clock: Callable[[], float]) -> None:
        self._per_minute = tokens_per_minute
        self._clock = clock
        self._accounts: dict[str | None, _Account] = {}

    def charge(self, tenant: str | None, n_tokens: int) -> None:
        """Charge ``tenant`` for ``n_tokens``."""
        if self._per_minute is not None:
            self._account(tenant, self._per_minute).n_tokens -= n_tokens

    def wait_s(self, tenant: str | None) -> float:
        """Seconds until the next request of ``tenant`` is accepted; 0 if it is now."""
        if self._per_minute is None:
            return 0.0
        account = self._account(tenant, self._per_minute)
        return max(0.0, (1.0 - account.n_tokens) * MINUTE_S / self._per_minute)

    def _account(self, tenant: str | None, per_minute: int) -> _Account:
        now = self._clock()
        account = self._accounts.setdefault(tenant, _Account(per_minute, now))
        gained = (now - account.filled_at) * per_minute / MINUTE_S
        account.n_tokens = min(account.n_tokens + gained, float(per_minute))
        account.filled_at = now
        return account
