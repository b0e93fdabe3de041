"""A scripted engine behind the real HTTP side: tests say what events a request meets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from model.errors import InputError
from model.sampling import SamplingParams
from model.text.chat import RenderedPrompt
from model.text.deltas import ContentDelta
from model.text.grammar.calls import call_grammar
from model.text.grammar.rules import json_schema
from server.client import EngineStats, ModelInfo
from server.events import (
    Emit,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Planned,
    PlanReport,
    Progress,
    WarmRequest,
)
from server.turn.served import Served

T = TypeVar("T")
Script = Callable[[GenerationRequest], Iterable[Event]]


def planned(request: GenerationRequest, *, reused: int = 0, mode: str = "FullRefill") -> Planned:
    """A plan for ``request`` that reuses ``reused`` tokens."""
    n_prompt = len(request.prompt.ids)
    return Planned(
        PlanReport(
            slot=str(request.slot),
            mode=mode,  # type: ignore[arg-type]
            prompt_tokens=n_prompt,
            shared_tokens=reused,
            reused_tokens=reused,
            prefilled_tokens=n_prompt - reused,
            checkpoint=None,
            reason="nothing is remembered in this slot yet",
        )
    )


def says(*texts: str, reason: str = "stop") -> Script:
    """A script in which every reply says ``texts``, one event each."""

    def script(request: GenerationRequest) -> Iterable[Event]:
        yield planned(request)
        for index in range(request.n_replies):
            for text in texts:
                yield Progress(index, (ContentDelta(text),))
            yield Finished(index, reason, n_tokens=len(texts) + 1, n_reasoning_tokens=0)  # type: ignore[arg-type]

    return script


def replies(*events: Event) -> Script:
    """A script that plans the request and then plays ``events``."""

    def script(request: GenerationRequest) -> Iterable[Event]:
        yield planned(request)
        yield from events

    return script


@dataclass
class FakeEngine:
    """Plays ``script`` for every request, on a thread of its own as the real one would.

    Attributes:
        requests: what was submitted, in order.
        cancelled: ids of the requests that were cancelled.
        was_asked, was_cancelled: set with the first request and the first cancel.
    """

    script: Script = field(default_factory=lambda: says("Hello", " there"))
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    was_asked: threading.Event = field(default_factory=threading.Event)
    was_cancelled: threading.Event = field(default_factory=threading.Event)
    ahead: list[WarmRequest] = field(default_factory=list)
    was_warmed: threading.Event = field(default_factory=threading.Event)
    n_steps: int = 0
    store: Any = None

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        self.requests.append(request)
        self.was_asked.set()
        threading.Thread(target=self._play, args=(request, emit), daemon=True).start()

    def read_ahead(self, request: WarmRequest) -> None:
        self.ahead.append(request)
        self.was_warmed.set()

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.was_cancelled.set()

    def call(self, fn: Callable[[Any], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(self.store))
        except Exception as error:
            future.set_exception(error)
        return future

    def stats(self) -> EngineStats:
        return EngineStats(n_steps=self.n_steps, n_running=0, n_waiting=0)

    def _play(self, request: GenerationRequest, emit: Emit) -> None:
        try:
            for event in self.script(request):
                self.n_steps += 1
                emit(event)
        except Exception as error:
            emit(Failed(str(error), kind="internal"))


class FakeChat:
    """Renders a conversation as bytes, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.renders: list[dict[str, Any]] = []
        self.variables = frozenset({"enable_thinking"})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        continue_final: bool = False,
        note: str | None = None,
        max_tokens: int | None = None,
    ) -> RenderedPrompt:
        self.renders.append(
            {
                "messages": messages,
                "tools": tools,
                "template_kwargs": template_kwargs,
                "continue_final": continue_final,
                "note": note,
                "max_tokens": max_tokens,
            }
        )
        for i, message in enumerate(messages):
            if message.get("content") == "unrenderable":
                raise InputError("cannot be rendered", param=f"messages[{i}].content")
        text = "\n".join(f"{message['role']}: {message.get('content')}" for message in messages)
        return RenderedPrompt(
            ids=FakeTokens().encode(text),
            opens_thought=(template_kwargs or {}).get("enable_thinking") is True,
        )

    def known_next(
        self,
        messages: Sequence[Mapping[str, Any]],
        reply: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> NDArray[np.uint32]:
        prompt = self.render([*messages, reply], tools=tools, template_kwargs=template_kwargs)
        return prompt.ids


class FakeTokens:
    """One token for each byte."""

    controls: Mapping[str, Any] = {}

    def encode(self, text: str) -> NDArray[np.uint32]:
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint32)

    def min_tokens(self, text: str) -> int:
        return len(text)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


class InlineGrammars:
    """Writes grammars in this process."""

    def json(self, schema: Mapping[str, Any], **options: Any) -> str:
        return json_schema(schema, **options)

    def calls(self, tools: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return call_grammar(tools, (), **options)


def fake_served(
    *names: str,
    aliases: tuple[str, ...] = (),
    patterns: tuple[str, ...] = (),
    context_length: int = 4096,
    sampling: SamplingParams | None = None,
) -> Served:
    """A model that is only its names and limits."""
    return Served(
        names=names or ("demo",),
        aliases=aliases,
        patterns=patterns,
        created=1_700_000_000,
        info=ModelInfo(
            name="demo", context_length=context_length, device="none", budget_bytes=1 << 30, vocab_size=256
        ),
        chat=FakeChat(),
        tokens=FakeTokens(),
        grammars=InlineGrammars(),
        sampling=sampling or SamplingParams(),
    )
