"""A client's request inside the engine: what is known of it, and how its events go out.

To hand anything over wakes the event loop's thread, and reading a token as text takes longer the longer ago
that code ran last; both are dear beside a decode step of a few milliseconds. So all replies wait until the
interval since the last time is over, and only then are asked for the text they have grown by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cache.planner import SlotKey
from model.text.chat import RenderedPrompt
from server.events import Emit, Event, GenerationRequest, Progress


class Prompted(Protocol):
    """What a prompt is planned and prefilled from: a client's request, or one to read ahead."""

    @property
    def id(self) -> str: ...

    @property
    def slot(self) -> SlotKey: ...

    @property
    def prompt(self) -> RenderedPrompt: ...


@dataclass(slots=True, eq=False)
class Ticket:
    """A client's request and where its events go.

    Attributes:
        arrived_at: seconds of the engine's clock.
        is_planned: the client was told the plan.
        is_answered: the client was told a part of a reply.
        is_over: the client was told the end; nothing more may be said.
        n_passed: how often a later request was admitted because this one did not fit.
        n_starts: how often the request was begun; twice when memory ran out the first time.
    """

    request: GenerationRequest
    emit: Emit
    arrived_at: float = 0.0
    is_planned: bool = False
    is_answered: bool = False
    is_over: bool = False
    n_passed: int = 0
    n_starts: int = 0


class Growing(Protocol):
    """A reply that is being written."""

    @property
    def emit(self) -> Emit:
        """Where its events go."""
        ...

    @property
    def n_tokens(self) -> int:
        """Its tokens so far."""
        ...

    def take_progress(self) -> Progress:
        """What it has grown by since the last call. Never raises."""
        ...


class Outbox:
    """Emits the events of all requests; what is held back goes out before anything else does.

    Args:
        interval_s: how long tokens may wait for more; 0 hands every one over at once.
        clock: seconds, monotonic.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._grown: dict[int, Growing] = {}  # by identity
        self._has_first_token = False
        self._flushed_at = float("-inf")

    def tell(self, emit: Emit, event: Event) -> None:
        """Emit ``event`` now."""
        self.flush()
        emit(event)

    def grow(self, reply: Growing) -> None:
        """``reply`` has grown; :meth:`end_step` decides when that is told."""
        self._grown[id(reply)] = reply
        self._has_first_token |= reply.n_tokens <= 1

    def end_step(self) -> None:
        """Every reply has grown by its token: emit them if the interval is over or a reply has just begun."""
        if self._has_first_token or self._clock() - self._flushed_at >= self._interval_s:
            self.flush()

    def flush(self) -> None:
        """Emit what is held. To be called before anything that takes longer than a step."""
        if not self._grown:
            return
        grown, self._grown = self._grown, {}
        self._has_first_token = False
        self._flushed_at = self._clock()
        # First read, then tell: the first event wakes the event loop, which should find the others there.
        told = [(reply.emit, reply.take_progress()) for reply in grown.values()]
        for emit, progress in told:
            emit(progress)
