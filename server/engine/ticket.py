"""A client's request inside the engine: its progress, and how its events are emitted.

An event wakes the event loop's thread, and decoding tokens to text is slow when its code has left the CPU's
caches. Both are expensive next to a decode step of a few milliseconds. So new tokens of all replies are held
back until an interval has passed, and only then turned into text and emitted together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cache.planner import SlotKey
from model.text.chat import RenderedPrompt
from server.events import Emit, Event, GenerationRequest, Progress


class Prompted(Protocol):
    """A request with a prompt: a client's, or one to read ahead."""

    @property
    def id(self) -> str: ...

    @property
    def slot(self) -> SlotKey: ...

    @property
    def prompt(self) -> RenderedPrompt: ...


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


class Growing(Protocol):
    """A reply that gains tokens."""

    @property
    def emit(self) -> Emit:
        """Where its events go."""
        ...

    @property
    def n_tokens(self) -> int:
        """Its tokens so far."""
        ...

    def take_progress(self) -> Progress:
        """What is new since the last call. Never raises."""
        ...


class Outbox:
    """Emits the events of all requests, in order: what is held back goes out before anything else.

    Args:
        interval_s: how long tokens may be held back; 0 emits each at once.
        clock: seconds, monotonic.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._held: dict[int, Growing] = {}  # by identity
        self._has_first_token = False
        self._flushed_at = float("-inf")

    def send(self, emit: Emit, event: Event) -> None:
        """Emit ``event`` now."""
        self.flush()
        emit(event)

    def hold(self, reply: Growing) -> None:
        """``reply`` has a new token; :meth:`end_step` decides when to emit it."""
        self._held[id(reply)] = reply
        self._has_first_token |= reply.n_tokens <= 1

    def end_step(self) -> None:
        """The step is over: emit new tokens if the interval has passed, or if one is the first of its
        reply."""
        if self._has_first_token or self._clock() - self._flushed_at >= self._interval_s:
            self.flush()

    def flush(self) -> None:
        """Emit what is held back. Called before anything that takes longer than a step."""
        if not self._held:
            return
        held, self._held = self._held, {}
        self._has_first_token = False
        self._flushed_at = self._clock()
        # Emit only after all are turned into text: the first event wakes the event loop, which should find
        # the others, too.
        events = [(reply.emit, reply.take_progress()) for reply in held.values()]
        for emit, progress in events:
            emit(progress)
