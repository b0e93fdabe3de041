"""Drives an engine loop by hand, one request or several at a time, and collects what it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from cache.planner import SlotKey, TokenIds
from model.sampling import SamplingParams
from model.text.chat import RenderedPrompt
from server.engine.loop import EngineLoop
from server.events import (
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Planned,
    PlanReport,
    Progress,
    ReplyFormat,
    WarmRequest,
)

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Outcome:
    """What one request was told."""

    id: str
    events: list[Event] = field(default_factory=list)

    @property
    def report(self) -> PlanReport:
        return next(event.report for event in self.events if isinstance(event, Planned))

    @property
    def finished(self) -> dict[int, Finished]:
        return {event.index: event for event in self.events if isinstance(event, Finished)}

    @property
    def failed(self) -> Failed | None:
        return next((event for event in self.events if isinstance(event, Failed)), None)

    @property
    def token_ids(self) -> dict[int, tuple[int, ...]]:
        """The ids of each reply that finished."""
        return {index: event.token_ids for index, event in self.finished.items()}

    def text(self, index: int = 0) -> str:
        return "".join(
            getattr(delta, "text", "")
            for event in self.events
            if isinstance(event, Progress) and event.index == index
            for delta in event.deltas
        )


class Driver:
    """A loop and a counter of request ids."""

    def __init__(self, loop: EngineLoop) -> None:
        self.loop = loop
        self._ids = count()

    def submit(
        self,
        prompt: RenderedPrompt | Sequence[int],
        *,
        session: str | None = None,
        max_tokens: int = 6,
        sampling: SamplingParams = GREEDY,
        reply: ReplyFormat | None = None,
        n_replies: int = 1,
        tenant: str | None = None,
        top_logprobs: int | None = None,
        tells_prefill: bool = False,
        prediction: TokenIds | None = None,
    ) -> Outcome:
        """Queue a request; nothing runs yet."""
        outcome = Outcome(f"request-{next(self._ids)}")
        self.loop.submit(
            GenerationRequest(
                id=outcome.id,
                slot=SlotKey.for_session(tenant, session),
                prompt=prompt if isinstance(prompt, RenderedPrompt) else plain_prompt(prompt),
                max_tokens=max_tokens,
                sampling=sampling,
                reply=reply or ReplyFormat(),
                n_replies=n_replies,
                top_logprobs=top_logprobs,
                tells_prefill=tells_prefill,
                prediction=prediction,
            ),
            outcome.events.append,
        )
        return outcome

    def ask(self, prompt: RenderedPrompt | Sequence[int], **options: object) -> Outcome:
        """Submit and run to the end."""
        outcome = self.submit(prompt, **options)  # type: ignore[arg-type]
        self.run()
        return outcome

    def read_ahead(self, prompt: RenderedPrompt, *, session: str | None = None) -> None:
        self.loop.read_ahead(
            WarmRequest(f"ahead-{next(self._ids)}", SlotKey.for_session(None, session), prompt)
        )

    def run(self) -> None:
        """Step until nothing is left to do; then every invariant must hold."""
        while self.loop.step():
            pass
        self.loop.store.check()


def plain_prompt(ids: Iterable[int], *, opens_thought: bool = False) -> RenderedPrompt:
    """A prompt of bare ids, without message boundaries."""
    return RenderedPrompt(np.array(list(ids), dtype=np.uint32), opens_thought=opens_thought)


def chat_prompt(
    messages: Sequence[Sequence[int]], *, roles: Sequence[str], header: Sequence[int]
) -> RenderedPrompt:
    """A prompt of messages that each begin with their opening token, and the reply's header.

    The point that later prompts share lies before the header's last token, as in the chat format,
    where a thought's opener stands there.
    """
    ids = [token for message in messages for token in message]
    starts = np.cumsum([0, *(len(message) for message in messages)]).tolist()
    whole = [*ids, *header]
    return RenderedPrompt(
        np.array(whole, dtype=np.uint32),
        message_starts=tuple(starts),
        message_roles=(*roles, "assistant"),
        shared_points=(len(whole) - 1,),
        system_end=starts[1] if roles[0] == "system" else 0,
    )
