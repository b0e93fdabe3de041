"""When what a reply grows by is handed over: together where tokens come fast, never late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from model.forward import Forward
from model.text.deltas import ContentDelta
from server.engine.admission import LoopOptions
from server.engine.loop import EngineLoop
from server.engine.reply import Outbox
from server.events import (
    Emit,
    Event,
    Failed,
    Finished,
    Planned,
    Progress,
    ReplyFormat,
    TokenLogprob,
)
from tests.fakes.driver import Driver, Outcome

MakeLoop = Callable[..., EngineLoop]
PROMPT = [3 + i % 200 for i in range(300)]
HOUR = 3600.0


@dataclass
class Client:
    """A request whose reply grows by a letter a token, and what it was told."""

    name: str
    told: list[Event] = field(default_factory=list)
    n_tokens: int = 0
    n_taken: int = 0

    def __post_init__(self) -> None:
        self.emit: Emit = self.told.append

    def take_progress(self) -> Progress:
        new, self.n_taken = range(self.n_taken, self.n_tokens), self.n_tokens
        return Progress(0, tuple(ContentDelta("abcdefghij"[i]) for i in new), (), self.n_tokens)

    @property
    def texts(self) -> list[str]:
        return ["".join(getattr(d, "text", "") for d in event.deltas) for event in self.told]  # type: ignore[union-attr]


@dataclass
class Line:
    """An outbox with a clock that stands still, and clients whose replies grow by a token a step."""

    interval_s: float
    now: float = 0.0

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.interval_s, lambda: self.now)

    def step(self, *clients: Client, after_s: float = 0.0) -> None:
        self.now += after_s
        for client in clients:
            client.n_tokens += 1
            self.outbox.hold(client)
        self.outbox.end_step()


def test_fast_tokens_go_out_together_once_the_interval_is_over() -> None:
    line, client = Line(0.02), Client("one")
    for _ in range(8):
        line.step(client, after_s=0.008)
    assert client.texts == ["a", "bcd", "efg"]


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


def test_all_replies_are_read_before_any_is_told() -> None:
    read: list[str] = []

    class Reader(Client):
        def take_progress(self) -> Progress:
            read.append(self.name)
            return super().take_progress()

    line, one, other = Line(HOUR), Reader("one"), Reader("other")
    n_read_when_told: list[int] = []
    for client in (one, other):
        client.emit = lambda _: n_read_when_told.append(len(read))
    line.step(one, other)
    assert n_read_when_told == [2, 2]


def test_an_event_comes_after_the_text_before_it() -> None:
    line, one, other = Line(HOUR), Client("one"), Client("other")
    for _ in range(3):
        line.step(one, other)
    line.outbox.send(one.emit, Failed("gone", "cancelled"))
    assert [type(event) for event in one.told] == [Progress, Progress, Failed]
    assert other.texts == ["a", "bc"]


# -- in the engine's loop ---------------------------------------------------------------------------


@pytest.fixture
def patient(make_loop: MakeLoop) -> Driver:
    """A loop that would let text wait for an hour."""
    options = LoopOptions(
        prefill_tokens=128, shared_prefill_tokens=64, stream_interval_seconds=HOUR, drafts=False
    )
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

    monkeypatch.setattr("server.engine.picking.sample_rows", fail)
    patient.loop.step()
    assert kinds(outcome) == [Planned, Progress, Progress, Failed]


def test_told_together_a_reply_has_the_same_text_and_logprobs(patient: Driver, make_loop: MakeLoop) -> None:
    late = patient.ask(PROMPT, max_tokens=40, top_logprobs=2)
    soon = Driver(make_loop(stop_ids=frozenset())).ask(PROMPT, max_tokens=40, top_logprobs=2)
    assert n_progress(late) == 2 < n_progress(soon)
    assert late.text() == soon.text()
    for one, other in zip(logprobs(late), logprobs(soon), strict=True):
        assert (one.token_id, one.logprob) == (other.token_id, pytest.approx(other.logprob, abs=1e-4))
    assert len(logprobs(late)) > 30
    assert late.finished == soon.finished
    assert len(late.events[2].deltas) == len({type(d) for d in late.events[2].deltas})  # type: ignore[union-attr]


def n_progress(outcome: Outcome) -> int:
    return sum(isinstance(event, Progress) for event in outcome.events)


def logprobs(outcome: Outcome) -> list[TokenLogprob]:
    return [told for event in outcome.events if isinstance(event, Progress) for told in event.logprobs]


def test_a_stop_string_ends_a_reply_at_its_token_however_long_text_may_wait(
    patient: Driver, make_loop: MakeLoop
) -> None:
    soon = Driver(make_loop(stop_ids=frozenset()))
    stop = soon.ask(PROMPT, max_tokens=40).text()[20:23]
    form = ReplyFormat(stops=(stop,))
    late, there = (driver.ask(PROMPT, max_tokens=40, reply=form, session="s") for driver in (patient, soon))
    assert late.finished[0].reason == "stop"
    assert late.finished == there.finished
    assert late.text() == there.text()


def test_a_fault_in_reading_tokens_that_waited_ends_that_reply_alone(
    patient: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = patient.submit(PROMPT, session="good", max_tokens=20)
    bad = patient.submit([*PROMPT, 3], session="bad", max_tokens=20)
    while n_told(bad) == 0:
        patient.loop.step()
    patient.loop.step()
    reply = next(reply for reply in patient.loop._decoder.replies if reply.request.id == bad.id)

    def fail(_: int) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(reply.reader, "push_all", fail)
    patient.submit(PROMPT[:20], session="third")  # what waits is read before another prompt is
    patient.run()
    assert bad.failed is not None
    assert len(good.finished[0].token_ids) == 20
