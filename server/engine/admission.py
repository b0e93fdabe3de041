"""Which requests are taken, and when one that waits may begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache.store import Store
from server.engine.allowance import Allowances
from server.engine.faults import RETRY_AFTER_S
from server.engine.options import LoopOptions
from server.engine.prefill import Prefiller
from server.engine.ticket import Ticket
from server.engine.waiting import WaitingLine, expected_tokens
from server.events import Failed, GenerationRequest


class Admission:
    """Owns the line of those that wait.

    Args:
        options: the limits.
        store: knows how much memory there is.
        state_bytes: of a conversation of so many tokens.
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

    def add(self, ticket: Ticket) -> Failed | None:
        """Let a request wait for its turn, or say why it must not."""
        refusal = self._refusal(ticket.request)
        if refusal is None:
            self.line.add(ticket)
        return refusal

    def take(
        self,
        running: Sequence[Ticket],
        prefiller: Prefiller,
        n_suffix: Callable[[GenerationRequest], int],
    ) -> Ticket | None:
        """The request whose turn it is, if one fits beside what runs.

        Args:
            running: the ticket of each reply that is being decoded.
            prefiller: the prompts that are being read.
            n_suffix: how many tokens of a prompt must be fed.
        """

        def fits(request: GenerationRequest) -> bool:
            return self._fits(request, running, prefiller.tickets) and prefiller.may_join(
                request.prompt.ids, lambda: n_suffix(request)
            )

        return self.line.take(fits)

    def take_expired(self) -> list[Ticket]:
        """Those that have waited too long."""
        return self.line.take_expired()

    @property
    def too_late(self) -> Failed:
        """What those are told."""
        message = f"no place came free within {self._options.queue_seconds:g} s"
        return Failed(message, "overloaded", retry_after_s=RETRY_AFTER_S)

    def width(self, request: GenerationRequest) -> int:
        """How many of the replies of ``request`` are written at a time; 0 when memory holds not even one
        beside the prompt that the others begin from."""
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
            message = f"{len(self.line)} requests are waiting already"
            return Failed(message, "overloaded", retry_after_s=RETRY_AFTER_S)
        if limits.max_waiting_per_key is not None and self.line.n_of(tenant) >= limits.max_waiting_per_key:
            message = f"{self.line.n_of(tenant)} requests of this key are waiting already"
            return Failed(message, "rate_limited", retry_after_s=RETRY_AFTER_S)
        wait_s = self.allowances.wait_s(tenant)
        if wait_s > 0:
            message = f"this key has used its {limits.tokens_per_minute} tokens a minute"
            return Failed(message, "rate_limited", retry_after_s=wait_s)
        if self.width(request) == 0:
            message = (
                f"'n': several replies to this prompt take twice {self._bytes_of(request)} bytes at least, "
                f"and conversations may hold {self._store.budget_bytes}"
            )
            return Failed(message, "invalid", param="n")
        return None

    def _fits(
        self, request: GenerationRequest, decoding: Sequence[Ticket], prefilling: Sequence[Ticket]
    ) -> bool:
        """Whether there are places in the batch and memory beside what runs. Alone, all fits."""
        if not decoding and not prefilling:
            return True
        limits, width = self._options, self.width(request)
        if _n_places(decoding, prefilling, self.width) + width > limits.max_running:
            return False
        if limits.max_running_per_key is not None:
            decoding = [ticket for ticket in decoding if ticket.request.slot.tenant == request.slot.tenant]
            prefilling = [
                ticket for ticket in prefilling if ticket.request.slot.tenant == request.slot.tenant
            ]
            if _n_places(decoding, prefilling, self.width) + width > limits.max_running_per_key:
                return False
        n_states = width + (width < request.n_replies)
        return self._store.can_admit(self._bytes_of(request) * n_states)

    def _bytes_of(self, request: GenerationRequest) -> int:
        """What one reply of ``request`` will hold, its prompt included."""
        return self._state_bytes(expected_tokens(request))


_RING_STATES = 3
"""States that the replies to one prompt keep of it together, whatever room there is."""


def _n_places(
    decoding: Sequence[Ticket], prefilling: Sequence[Ticket], width: Callable[[GenerationRequest], int]
) -> int:
    """Places in the batch that are taken, or will be once the prompts are read."""
    return len(decoding) + sum(width(ticket.request) for ticket in prefilling)
