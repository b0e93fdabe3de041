"""The engine as the HTTP side sees it.

The engine thread implements :class:`EngineClient`; tests put a scripted one in its place. Every method may be
called from the event loop, because none of them blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from cache.store import Store
    from server.events import Emit, GenerationRequest, WarmRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that is served.

    Attributes:
        name: the last part of its path or Hub id.
        context_length: the most tokens of a prompt and its reply together.
        device: its name for people.
        budget_bytes: the most memory that retained conversations may hold, besides the weights.
        vocab_size: token ids are smaller than this.
    """

    name: str
    context_length: int
    device: str
    budget_bytes: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's pulse and load, readable at any moment.

    Attributes:
        n_steps: steps of the loop since the start; stands still only while the engine is idle or stuck.
        n_running: requests that are being prefilled or decoded.
        n_waiting: requests that wait for admission.
        n_prompt_tokens, n_reused_tokens: of all prompts since the start.
        n_prefilled_tokens, n_read_ahead_tokens: all tokens fed by prefills, and those of them that were read
            ahead, between turns.
        n_generated_tokens: of all replies since the start.
        n_drafted_tokens, n_accepted_tokens: of all completed replies.
        is_alive: whether the engine's thread runs.
    """

    n_steps: int
    n_running: int
    n_waiting: int
    n_prompt_tokens: int = 0
    n_reused_tokens: int = 0
    n_prefilled_tokens: int = 0
    n_read_ahead_tokens: int = 0
    n_generated_tokens: int = 0
    n_drafted_tokens: int = 0
    n_accepted_tokens: int = 0
    is_alive: bool = True


class EngineClient(Protocol):
    """The engine as the event loop sees it."""

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        """Queue ``request``; its events arrive through ``emit``."""
        ...

    def read_ahead(self, request: WarmRequest) -> None:
        """Queue the known beginning of a session's next prompt, to be prefilled while the engine is idle."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a request within a token or two; an id that is unknown or done is ignored."""
        ...

    def call(self, fn: Callable[[Store], T]) -> Future[T]:
        """Run ``fn`` over the store on the engine thread, between two steps."""
        ...

    @property
    def n_steps(self) -> int:
        """``n_steps`` of :class:`EngineStats`, without the rest."""
        ...

    def stats(self) -> EngineStats:
        """The current figures."""
        ...
