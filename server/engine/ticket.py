"""What the engine knows of a client's request from its arrival to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cache.planner import SlotKey
from model.text.chat import RenderedPrompt
from server.events import Emit, GenerationRequest


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
        is_over: the client was told the end; nothing more may be said.
        n_passed: how often a later request was admitted because this one did not fit.
        n_starts: how often the request was begun; twice when memory ran out the first time.
    """

    request: GenerationRequest
    emit: Emit
    arrived_at: float = 0.0
    is_planned: bool = False
    is_over: bool = False
    n_passed: int = 0
    n_starts: int = 0
