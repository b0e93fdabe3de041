"""What is told of requests, several tokens at a time where they come fast.

To hand anything over wakes the event loop's thread, which is dear beside a decode step of a few milliseconds.
So the text of all replies waits until the interval since the last time is over, and then goes out together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from model.text.deltas import joined
from server.events import Event, GenerationRequest, Progress


@dataclass(slots=True)
class _Held:
    request: GenerationRequest
    progress: Progress


class Outbox:
    """Emits the events of all requests; what is held back goes out before anything else does.

    Args:
        interval_s: how long text may wait for more; 0 hands every token over at once.
        clock: seconds, monotonic.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._held: dict[tuple[str, int], _Held] = {}
        self._has_first_token = False
        self._flushed_at = float("-inf")

    def tell(self, request: GenerationRequest, event: Event) -> None:
        """Emit ``event`` now."""
        self.flush()
        request.emit(event)

    def grow(self, request: GenerationRequest, progress: Progress) -> None:
        """A reply has grown; :meth:`end_step` decides when that is told."""
        key = request.id, progress.index
        held = self._held.get(key)
        if held is None:
            self._held[key] = _Held(request, progress)
        else:
            held.progress = _together(held.progress, progress)
        self._has_first_token |= progress.n_tokens <= 1

    def end_step(self) -> None:
        """Every reply has grown by its token: emit them if the interval is over or a reply has just begun."""
        if self._has_first_token or self._clock() - self._flushed_at >= self._interval_s:
            self.flush()

    def flush(self) -> None:
        """Emit what is held. To be called before anything that takes longer than a step."""
        if not self._held:
            return
        held, self._held = self._held, {}
        self._has_first_token = False
        self._flushed_at = self._clock()
        for one in held.values():
            one.request.emit(one.progress)


def _together(first: Progress, second: Progress) -> Progress:
    return Progress(
        index=first.index,
        deltas=tuple(joined([*first.deltas, *second.deltas])),
        logprobs=first.logprobs + second.logprobs,
        n_tokens=second.n_tokens,
    )
