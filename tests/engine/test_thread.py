"""The engine's thread: it survives what its loop cannot answer for, and never hides that it has died."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from cache.planner import SlotKey
from model.sampling import SamplingParams
from model.text.tokenizer import TextTokenizer
from server.client import EngineStats
from server.engine.assembly import EngineOptions
from server.engine.loop import EngineLoop
from server.engine.thread import Engine, Watchdog
from server.events import Event, Failed, Finished, GenerationRequest
from server.native.health import Pulse
from server.settings import Settings
from tests.conftest import DEMO
from tests.fakes.cache_kit import FakeClock
from tests.fakes.driver import plain_prompt

PROMPT = [10 + i * i % 90 for i in range(40)]


@pytest.fixture
def engine(tokenizer: TextTokenizer) -> Iterator[Engine]:
    engine = Engine(EngineOptions(DEMO, Settings(memory_budget=2**28)), tokenizer)
    engine.start()
    yield engine
    engine.stop(drain_s=5)


def ask(engine: Engine, prompt: list[int] = PROMPT, name: str = "one") -> Event:
    """Submit a request; its last event."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    slot = SlotKey.for_session(None, name)
    request = GenerationRequest(name, slot, plain_prompt(prompt), 3, SamplingParams(temperature=0.0))
    engine.submit(request, events.put)
    while not isinstance(event := events.get(timeout=60), Finished | Failed):
        pass
    return event


def broken(times: int, original: Any) -> Any:
    """``original``, failing the first ``times`` times."""
    left = [times]

    def method(self: EngineLoop, *args: Any) -> Any:
        if left[0] and self.has_requests:
            left[0] -= 1
            raise RuntimeError("planted")
        return original(self, *args)

    return method


def test_a_fault_of_the_loop_itself_ends_what_runs_and_the_rest_is_remembered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(engine)
    assert isinstance(first, Finished)
    monkeypatch.setattr(EngineLoop, "_admit", broken(1, EngineLoop._admit))
    failed = ask(engine, name="two")
    assert isinstance(failed, Failed)
    assert failed.kind == "internal"
    assert engine.call(lambda store: len(store.slots())).result() == 1
    again = ask(engine)
    assert isinstance(again, Finished)
    assert again.token_ids == first.token_ids


def test_e1_a_message_that_cannot_be_taken_concerns_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(EngineLoop, "cancel", lambda *_: 1 / 0)
        engine.cancel("nobody")
        assert isinstance(ask(engine), Finished)
    assert engine.stats().is_alive


def test_a_loop_that_cannot_go_on_at_all_is_not_hidden(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineLoop, "_admit", broken(2, EngineLoop._admit))
    engine = Engine(EngineOptions(DEMO, Settings(memory_budget=2**28)), tokenizer)
    engine.start()
    assert isinstance(ask(engine), Failed)
    assert isinstance(ask(engine), Failed)
    assert engine._thread is not None
    engine._thread.join()
    assert not engine.stats().is_alive
    assert Pulse(FakeClock(), stall_s=10).is_stalled(engine.stats())
    refused = ask(engine)  # nobody waits for a thread that is gone
    assert isinstance(refused, Failed)
    engine.stop(drain_s=0)


def test_e1_an_engine_that_is_not_there_is_no_healthy_one() -> None:
    dead = EngineStats(n_steps=0, n_running=0, n_waiting=0, is_alive=False)
    assert Pulse(FakeClock(), stall_s=10).is_stalled(dead)


def test_the_watchdog_logs_where_every_thread_stands_once_when_nothing_moves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [EngineStats(n_steps=4, n_running=1, n_waiting=0)]
    watchdog = Watchdog(lambda: now[0], stall_s=60)
    with caplog.at_level(logging.CRITICAL, "crossturn.engine"):
        assert not watchdog.look()
        assert watchdog.look()
        assert watchdog.look()
        (record,) = caplog.records
        assert "has not moved for 60 s" in record.getMessage()
        assert "test_the_watchdog_logs" in record.getMessage()
        now[0] = EngineStats(n_steps=5, n_running=1, n_waiting=0)
        assert not watchdog.look()
        now[0] = EngineStats(n_steps=5, n_running=0, n_waiting=0)
        assert not watchdog.look()
        assert not watchdog.look()
