"""A server around the demo model that writes what a script says and notes, for each turn, what was read.

Everything is computed as ever: prompts are prefilled, states are kept, plans are made. Only the sampled
tokens are the script's, so that an agent's loop goes where it must go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import server.engine.assembly as assembly
from model.text.blocks import n_common
from server.events import Emit, Event, Finished, GenerationRequest, Planned
from server.settings import Settings
from tests.fakes.live_server import Live, live_demo
from tests.fakes.scripted import ids_of
from tests.fakes.scripted_model import ScriptedForward, script

END_ID = ids_of("<|im_end|>")[0]
Write = Callable[[str], str]
"""From a prompt's text to the reply's, which begins inside the thought where the prompt leaves one open."""


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """One request of an agent.

    Attributes:
        n_prompt: tokens of its prompt.
        n_new: those behind what it shares with the conversation of an earlier request, its reply included.
        n_read: those that were prefilled for it.
    """

    n_prompt: int
    n_new: int
    n_read: int


@dataclass
class Author:
    """Knows what is written behind the prompt that runs; requests run one after the other."""

    n_prompt: int = 0
    ids: list[int] = field(default_factory=list)

    def __call__(self, n_fed: int) -> int:
        return script(self.n_prompt, self.ids, END_ID)(n_fed)


@dataclass
class Notary:
    """The engine, with a script for its replies, and a note of every turn."""

    engine: Any
    author: Author
    write: Write
    decode: Callable[[Any], str]
    turns: list[MeasuredTurn] = field(default_factory=list)
    _fed: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        prompt = request.prompt.ids
        self.author.n_prompt = len(prompt)
        self.author.ids = ids_of(self.write(self.decode(prompt.tolist())))

        def note(event: Event) -> None:
            if isinstance(event, Planned):
                shared = max((n_common(fed, prompt) for fed in self._fed), default=0)
                read = event.report.prefilled_tokens
                self.turns.append(MeasuredTurn(len(prompt), len(prompt) - shared, read))
            if isinstance(event, Finished):
                reply = np.asarray(event.token_ids, dtype=np.uint32)
                self._fed.append(np.concatenate([prompt, reply]))
            emit(event)

        self.engine.submit(request, note)


@contextmanager
def measured_demo(
    write: Write, settings: Settings | None = None
) -> Iterator[tuple[Live, list[MeasuredTurn]]]:
    """Serve the demo model, writing what ``write`` says."""
    author = Author()
    load = assembly.load

    def scripted(*args: Any, **kwargs: Any) -> ScriptedForward:
        return ScriptedForward(load(*args, **kwargs), author)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "load", scripted)
        with live_demo(settings) as server:
            tokens = server.gateway.served.tokens
            notary = Notary(server.gateway.engine, author, write, tokens.decode)
            patch.setattr(server.gateway, "engine", notary)
            yield server, notary.turns
