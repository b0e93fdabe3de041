"""What the HTTP side may ask of the engine, and nothing more.

The engine thread implements :class:`EngineClient`; tests put a scripted one in its place. Every method may
be called from the event loop: none of them blocks.
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
    """What is served, as the ready line and ``/v1/models`` tell it.

    Attributes:
        name: the model's own name, the last part of its path or Hub id.
        context_length: tokens a prompt and its reply may have together.
        device: human-readable name of what computes.
        budget_bytes: memory that retained conversations may hold, weights not included.
        vocab_size: token ids are below this.
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
        n_steps: forward passes since the start (prefill chunks and decode steps); it stands still only when
            the engine is idle or stuck.
        n_running: requests that are being prefilled or decoded.
        n_waiting: requests in the admission queue.
        n_prompt_tokens, n_reused_tokens: of all prompts since the start.
        n_prefilled_tokens, n_read_ahead_tokens: all tokens read, and those of them
            that were read between turns.
        n_generated_tokens: of all replies since the start.
        n_drafted_tokens, n_accepted_tokens: of the replies that are over, tokens guessed ahead, and those of
            them that came true.
        is_alive: the engine's thread runs.
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
        """Queue ``request``; everything that becomes of it arrives through ``emit``."""
        ...

    def read_ahead(self, request: WarmRequest) -> None:
        """Read, once nothing else is to be done, what the next prompt of a session begins with."""
        ...

    def cancel(self, request_id: str) -> None:
        """Stop a request within a token or two; an id that is unknown or done is ignored."""
        ...

    def call(self, fn: Callable[[Store], T]) -> Future[T]:
        """Run ``fn`` over the store on the engine thread, between two steps."""
        ...

    @property
    def n_steps(self) -> int:
        """The pulse alone, that of :class:`EngineStats`."""
        ...

    def stats(self) -> EngineStats:
        """A snapshot of now."""
        ...
