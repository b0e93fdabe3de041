"""An engine loop without a server around it, driven one request at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from cache.planner import SlotKey
from model.sampling import SamplingParams
from model.text.chat import ChatFormat, RenderedPrompt
from model.text.tokenizer import TextTokenizer
from server.client import ModelInfo
from server.engine.admission import LoopOptions
from server.engine.assembly import EngineOptions, assemble
from server.engine.loop import EngineLoop
from server.events import Event, Finished, GenerationRequest, Planned, PlanReport, Progress
from server.settings import Settings


@dataclass(frozen=True)
class Told:
    """What came of one request."""

    text: str
    token_ids: tuple[int, ...]
    report: PlanReport
    first_token_s: float


class Loop:
    """One model, one store. Thoughts are off and sampling is greedy.

    Attributes:
        chat: renders conversations for :meth:`ask`.
    """

    def __init__(
        self, path: Path, *, options: LoopOptions | None = None, settings: Settings | None = None
    ) -> None:
        self.tokenizer = TextTokenizer.from_dir(path)
        self.chat = ChatFormat(self.tokenizer)
        loop = options or LoopOptions(idle_prefill=False)
        engine_options = EngineOptions(model_path=path, settings=settings or Settings(), loop=loop)
        self.engine: EngineLoop
        self.info: ModelInfo
        self.engine, self.info = assemble(engine_options, self.tokenizer)
        self._ids = count()

    def render(self, messages: Sequence[dict[str, object]], *, thinking: bool = False) -> RenderedPrompt:
        return self.chat.render(messages, template_kwargs={"enable_thinking": thinking})

    def state_bytes(self, n_tokens: int) -> int:
        """Bytes of a state that stands for ``n_tokens``."""
        return self.engine.forward.state_bytes(n_tokens)

    def ask(self, prompt: RenderedPrompt, *, session: str | None = None, max_tokens: int = 16) -> Told:
        """Run one request to its end."""
        events: list[Event] = []
        first_token_s: list[float] = []
        started = time.perf_counter()

        def emit(event: Event) -> None:
            events.append(event)
            if isinstance(event, Progress | Finished):
                first_token_s.append(time.perf_counter() - started)

        self.engine.submit(
            GenerationRequest(
                id=f"bench-{next(self._ids)}",
                slot=SlotKey.for_session(None, session),
                prompt=prompt,
                max_tokens=max_tokens,
                sampling=SamplingParams(temperature=0.0),
            ),
            emit,
        )
        while self.engine.step():
            pass
        report = next(event.report for event in events if isinstance(event, Planned))
        deltas = (d for event in events if isinstance(event, Progress) for d in event.deltas)
        text = "".join(getattr(delta, "text", "") for delta in deltas)
        end = next(event for event in events if isinstance(event, Finished))
        return Told(text, end.token_ids, report, first_token_s[0])


def random_ids(n: int, seed: int, vocab_size: int) -> np.ndarray:
    """[n] uint32, without the control tokens at the vocabulary's end."""
    return np.random.default_rng(seed).integers(0, vocab_size - 100, n).astype(np.uint32)
