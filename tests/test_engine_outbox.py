"""When what a reply grows by is handed over: together where tokens come fast, never late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from driver import Driver, Outcome, plain_prompt

from cache.planner import CrossTurnSlotId
from model.forward import Forward
from model.text.deltas import ContentDelta, ToolCallArguments, ToolCallStart
from server.engine.loop import EngineLoop, LoopOptions
from server.engine.outbox import Outbox
from server.events import Event, Failed, Finished, GenerationRequest, Planned, Progress, TokenLogprob

MakeLoop = Callable[..., EngineLoop]
PROMPT = [3 + i % 200 for i in range(300)]
HOUR = 3600.0


@dataclass
class Client:
    """A request, and what it was told."""

    name: str
    told: list[Event] = field(default_factory=list)
    n_tokens: int = 0

    def __post_init__(self) -> None:
        slot = CrossTurnSlotId.for_session(None, self.name)
        self.request = GenerationRequest(self.name, slot, plain_prompt([1]), 100, self.told.append)

    @property
    def texts(self) -> list[str]:
        return ["".join(getattr(d, "text", "") for d in event.deltas) for event in self.told]  # type: ignore[union-attr]


@dataclass
class Line:
    """An outbox with a clock that stands still, and clients whose replies grow by a letter a step."""

    interval_s: float
    now: float = 0.0

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.interval_s, lambda: self.now)

    def step(self, *clients: Client, after_s: float = 0.0) -> None:
        self.now += after_s
        for client in clients:
            letter = "abcdefghij"[client.n_tokens]
            client.n_tokens += 1
            told = TokenLogprob(client.n_tokens, -1.0, ())
            self.outbox.grow(client.request, Progress(0, (ContentDelta(letter),), (told,), client.n_tokens))
        self.outbox.end_step()


def test_fast_tokens_go_out_together_once_the_interval_is_over() -> None:
    line, client = Line(0.02), Client("one")
    for _ in range(8):
        line.step(client, after_s=0.008)
    assert client.texts == ["a", "bcd", "efg"]
    last = client.told[-1]
    assert isinstance(last, Progress)
    assert last.n_tokens == 7
    assert [told.token_id for told in last.logprobs] == [5, 6, 7]


def test_slow_tokens_go_out_one_by_one() -> None:
    line, client = Line(0.02), Client("one")
    for _ in range(4):
        line.step(client, after_s=0.021)
    assert client.texts == ["a", "b", "c", "d"]


def test_without_an_interval_every_token_goes_out() -> None:
    line, client = Line(0.0), Client("one")
    for _ in range(4):
        line.step(client)
    assert client.texts == ["a", "b", "c", "d"]


def test_a_first_token_goes_out_at_once_and_takes_along_what_others_wait_with() -> None:
    line, old, new = Line(HOUR), Client("old"), Client("new")
    line.step(old)
    line.step(old)
    line.step(old, new)
    assert (old.texts, new.texts) == (["a", "bc"], ["a"])


def test_an_event_comes_after_the_text_before_it() -> None:
    line, one, other = Line(HOUR), Client("one"), Client("other")
    for _ in range(3):
        line.step(one, other)
    line.outbox.tell(one.request, Failed("gone", "cancelled"))
    assert [type(event) for event in one.told] == [Progress, Progress, Failed]
    assert other.texts == ["a", "bc"]


def test_deltas_of_one_kind_become_one_and_replies_of_a_request_stay_apart() -> None:
    line, client = Line(HOUR), Client("one")
    line.step(client)
    for index, deltas in (
        (0, (ContentDelta("x"),)),
        (1, (ContentDelta("other"),)),
        (0, (ToolCallStart(0, "id", "f"), ToolCallArguments(0, '{"a":'))),
        (0, (ToolCallArguments(0, "1}"), ToolCallStart(1, "di", "g"), ToolCallArguments(1, "{}"))),
    ):
        line.outbox.grow(client.request, Progress(index, deltas, (), 5))
    line.outbox.flush()
    first, second = client.told[1:]
    assert isinstance(first, Progress)
    assert first.deltas == (
        ContentDelta("x"),
        ToolCallStart(0, "id", "f"),
        ToolCallArguments(0, '{"a":1}'),
        ToolCallStart(1, "di", "g"),
        ToolCallArguments(1, "{}"),
    )
    assert second == Progress(1, (ContentDelta("other"),), (), 5)


# -- in the engine's loop ---------------------------------------------------------------------------


@pytest.fixture
def patient(make_loop: MakeLoop) -> Driver:
    """A loop that would let text wait for an hour."""
    options = LoopOptions(prefill_tokens=128, shared_prefill_tokens=64, stream_interval_s=HOUR)
    return Driver(make_loop(options=options, stop_ids=frozenset()))


def kinds(outcome: Outcome) -> list[type[Event]]:
    return [type(event) for event in outcome.events]


def n_told(outcome: Outcome) -> int:
    """Tokens of the newest progress."""
    return max((event.n_tokens for event in outcome.events if isinstance(event, Progress)), default=0)


def test_a_reply_is_told_at_its_first_token_and_at_its_end(patient: Driver, make_loop: MakeLoop) -> None:
    outcome = patient.ask(PROMPT, max_tokens=9)
    assert kinds(outcome) == [Planned, Progress, Progress, Finished]
    assert [event.n_tokens for event in outcome.events if isinstance(event, Progress)] == [1, 9]
    assert outcome.text() == Driver(make_loop(stop_ids=frozenset())).ask(PROMPT, max_tokens=9).text()


def test_text_goes_out_before_the_prompt_of_another_request_is_read(
    patient: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = patient.submit(PROMPT, max_tokens=60, session="writing")
    while n_told(writing) == 0:
        patient.loop.step()
    patient.loop.step()
    patient.loop.step()
    assert n_told(writing) == 1
    seen: list[int] = []
    prefill = Forward.prefill

    def watch(self: Forward, state: object, ids: np.ndarray, **options: object) -> object:
        seen.append(n_told(writing))
        return prefill(self, state, ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Forward, "prefill", watch)
    patient.submit(PROMPT[::-1], session="other")
    for _ in range(3):
        patient.loop.step()
    assert seen == [3, 4, 5]


def test_a_cancelled_reply_is_told_what_it_had_grown_to(patient: Driver) -> None:
    outcome = patient.submit(PROMPT, max_tokens=60)
    while n_told(outcome) == 0:
        patient.loop.step()
    for _ in range(4):
        patient.loop.step()
    patient.loop.cancel(outcome.id)
    assert kinds(outcome) == [Planned, Progress, Progress, Failed]
    assert n_told(outcome) == 5


def test_a_reply_that_fails_is_told_what_it_had_grown_to(
    patient: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = patient.submit(PROMPT, max_tokens=60)
    while n_told(outcome) == 0:
        patient.loop.step()
    patient.loop.step()

    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("server.engine.decoding.sample_rows", fail)
    patient.loop.step()
    assert kinds(outcome) == [Planned, Progress, Progress, Failed]
