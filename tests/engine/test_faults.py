"""A fault at any step of a request: it alone fails, the next one is right, nothing else is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

import model.sampling
from cache.entry import RunningEntry
from cache.store import Store
from model.batch import DecodeBatch
from model.forward import Forward
from model.sampling import Sampler
from model.text.grammar.masks import Grammar, GrammarTable
from model.text.grammar.rules import json_schema
from model.text.reply import ReplyReader
from server.engine.loop import EngineLoop
from server.events import Failed, Finished, Progress, ReplyFormat
from tests.fakes.driver import Driver, Outcome, plain_prompt

MakeLoop = Callable[..., EngineLoop]
PROMPT = [10 + i * i % 90 for i in range(300)]
FORM = ReplyFormat(grammar=json_schema({"type": "string"}), stops=("never written",))


class Panic(BaseException):
    """What a library in Rust raises: no Exception."""


def raise_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: BaseException, *, n_times: int = 1
) -> list[object]:
    """The next call of ``owner.name`` raises ``fault``; the list tells whether it did."""
    original = getattr(owner, name)
    raised: list[object] = []

    def wrapper(*args: Any, **options: Any) -> Any:
        if len(raised) < n_times:
            raised.append(fault)
            raise fault
        return original(*args, **options)

    monkeypatch.setattr(owner, name, wrapper)
    return raised


class BrokenSampler(Sampler):
    """Knows no token."""

    @property
    def added(self) -> tuple[mx.array, ...]:
        raise RuntimeError("planted")


STEPS: dict[str, tuple[Any, str]] = {
    "recall": (Store, "recall"),
    "plan": (Store, "plan"),
    "take": (Store, "take"),
    "prefill": (Forward, "prefill"),
    "capture": (RunningEntry, "capture"),
    "grammar": (GrammarTable, "start"),
    "mask": (Grammar, "mask"),
    "sampler": (Sampler, "__init__"),
    "sample": (model.sampling, "_adjusted"),
    "reader": (ReplyReader, "__init__"),
    "join": (DecodeBatch, "join"),
    "decode": (DecodeBatch, "step"),
    "parse": (ReplyReader, "push_all"),
    "finish": (ReplyReader, "finish"),
    "leave": (DecodeBatch, "leave"),
}


@pytest.mark.parametrize("fault", [RuntimeError("planted"), Panic("planted")], ids=["error", "panic"])
@pytest.mark.parametrize("step", STEPS)
def test_e1_a_fault_at_any_step_fails_that_request_alone(
    make_loop: MakeLoop,
    demo_forward: Forward,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    fault: BaseException,
) -> None:
    def ask(driver: Driver, session: str, prompt: list[int] = PROMPT, **options: Any) -> Outcome:
        return driver.submit(prompt, session=session, **options)

    cold = Driver(make_loop(forward=demo_forward)).ask(PROMPT)
    driver = Driver(make_loop(forward=demo_forward))
    driver.ask(PROMPT, session="kept")
    n_kept = driver.loop.store.n_bytes
    with monkeypatch.context() as patch:
        # Rows that cannot be picked together are picked apart: there it must fail again.
        raised = raise_once(patch, *STEPS[step], fault, n_times=1 + (step == "sample"))
        bad = ask(driver, "bad", [*PROMPT, 7], reply=FORM, max_tokens=4)
        driver.run()
    assert raised
    assert bad.failed is not None
    assert bad.events[-1] is bad.failed
    assert [type(event) for event in bad.events].count(Failed) == 1
    assert driver.loop.stats().n_running == driver.loop.stats().n_waiting == 0
    assert not driver.loop.store._running, "something is still counted as running"
    assert driver.loop.store.n_bytes >= n_kept
    kept = ask(driver, "kept", [*PROMPT, *cold.token_ids[0], 5, 6])
    driver.run()
    assert kept.report.reused_tokens == len(PROMPT) + len(cold.token_ids[0])
    again = ask(driver, "bad")
    driver.run()
    assert again.token_ids == cold.token_ids


@pytest.mark.parametrize("step", ["mask", "sample", "parse", "grammar", "plan"])
def test_a_fault_of_one_request_leaves_those_beside_it_alone(
    make_loop: MakeLoop, demo_forward: Forward, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    cold = Driver(make_loop(forward=demo_forward)).ask(PROMPT, max_tokens=30)
    driver = Driver(make_loop(forward=demo_forward))
    good = driver.submit(PROMPT, session="good", max_tokens=30)
    while not any(isinstance(event, Progress) for event in good.events):
        driver.loop.step()
    bad = driver.submit([*PROMPT, 7], session="bad", reply=FORM, max_tokens=9)
    if step in ("sample", "parse"):
        while not any(isinstance(event, Progress) for event in bad.events):
            driver.loop.step()
    if step == "parse":
        reply = next(reply for reply in driver.loop._decoder.replies if reply.request.id == bad.id)
        monkeypatch.setattr(reply.reader, "push_all", lambda _: 1 / 0)
    elif step == "sample":
        reply = next(reply for reply in driver.loop._decoder.replies if reply.request.id == bad.id)
        reply.sampler.__class__ = BrokenSampler
    else:
        raise_once(monkeypatch, *STEPS[step], RuntimeError("planted"))
    driver.run()
    assert bad.failed is not None
    assert good.token_ids == cold.token_ids


def test_a_fault_in_keeping_a_reply_costs_the_memory_alone(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    with monkeypatch.context() as patch:
        raise_once(patch, Store, "save", RuntimeError("planted"))
        outcome = driver.ask(PROMPT)
    assert outcome.finished
    assert driver.loop.store.n_bytes == 0
    assert driver.ask(PROMPT).token_ids == outcome.token_ids


def test_what_was_read_of_a_prompt_is_kept_though_its_reply_could_not_begin(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    with monkeypatch.context() as patch:
        raise_once(patch, Sampler, "__init__", RuntimeError("planted"))
        assert driver.ask(PROMPT).failed is not None
    assert driver.ask([*PROMPT, 4]).report.reused_tokens == len(PROMPT)


def test_x4_a_grammar_that_can_say_no_more_ends_the_reply_with_an_error(
    make_loop: MakeLoop, demo_forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_loop(forward=demo_forward))
    table = driver.loop._maker._grammars()

    class Matcher:
        def deep_copy(self) -> Matcher:
            return self

        def compute_bitmask(self) -> bytes:
            return bytes(demo_forward.config.vocab_size // 8)

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "too many items\nand a dump of the grammar"

    monkeypatch.setattr(table, "start", lambda _: Grammar(Matcher(), demo_forward.config.vocab_size))  # type: ignore[arg-type]
    outcome = driver.ask(PROMPT, reply=FORM)
    assert outcome.failed is not None
    assert "too many items" in outcome.failed.message
    assert "dump" not in outcome.failed.message


def test_a_grammar_that_is_refused_in_the_engine_is_the_clients_error(
    make_loop: MakeLoop, demo_forward: Forward
) -> None:
    driver = Driver(make_loop(forward=demo_forward))
    driver.ask(PROMPT, session="kept")
    bad = driver.submit([*PROMPT, 7], session="kept", reply=ReplyFormat(grammar="start: nothing"))
    driver.run()
    assert bad.failed is not None
    assert bad.failed.kind == "invalid"
    assert driver.ask([*PROMPT, 8], session="kept").report.reused_tokens >= len(PROMPT) - 64


def test_two_siblings_that_fail_in_the_same_step_tell_the_client_once(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    bad = driver.submit(PROMPT, n_replies=3, max_tokens=20)
    while not any(isinstance(event, Progress) for event in bad.events):
        driver.loop.step()
    for reply in driver.loop._decoder.replies[1:]:
        monkeypatch.setattr(reply.reader, "push_all", lambda _: 1 / 0)
    driver.run()
    assert [type(event) for event in bad.events].count(Failed) == 1
    assert not any(isinstance(event, Finished) for event in bad.events)
    assert not driver.loop.store._running


def test_the_loop_recovers_with_what_is_at_rest(make_loop: MakeLoop) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    first = driver.ask(PROMPT, session="kept")
    running, waiting = (driver.submit([*PROMPT, i], session=f"s{i}", max_tokens=50) for i in range(2))
    for _ in range(4):
        driver.loop.step()
    driver.loop.recover(RuntimeError("planted"))
    driver.run()
    for outcome in (running, waiting):
        assert outcome.failed is not None
        assert outcome.failed.kind == "internal"
    assert driver.ask([*PROMPT, *first.token_ids[0], 5], session="kept").report.mode == "ExactAppend"
    assert driver.ask(PROMPT, session="s0").token_ids == first.token_ids


# -- memory ------------------------------------------------------------------------------------------

OUT_OF_MEMORY = [MemoryError(), RuntimeError("[metal::malloc] Unable to allocate 123 bytes.")]


@pytest.mark.parametrize("fault", OUT_OF_MEMORY, ids=["python", "metal"])
@pytest.mark.parametrize("step", ["take", "prefill"])
def test_e2_where_memory_runs_out_what_is_idle_goes_and_the_prompt_is_read_once_more(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch, step: str, fault: BaseException
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    for i in range(4):
        driver.ask([*PROMPT[i:], 9], session=f"idle {i}")
    n_idle = driver.loop.store.n_bytes
    raise_once(monkeypatch, *STEPS[step], fault)
    outcome = driver.submit(PROMPT, session="new")
    driver.loop.step()
    assert driver.loop.store.n_bytes < n_idle
    driver.run()
    assert outcome.token_ids == Driver(make_loop(stop_ids=frozenset())).ask(PROMPT).token_ids
    assert len([event for event in outcome.events if hasattr(event, "report")]) == 1


def test_e2_where_memory_runs_out_in_the_middle_of_a_reply_nothing_of_it_is_told_twice(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    outcome = driver.submit(PROMPT, max_tokens=20)
    while not any(isinstance(event, Progress) for event in outcome.events):
        driver.loop.step()
    raise_once(monkeypatch, *STEPS["decode"], MemoryError())
    driver.run()
    assert outcome.failed is not None
    assert outcome.failed.kind == "overloaded"
    told = [event.n_tokens for event in outcome.events if isinstance(event, Progress)]
    assert told == sorted(set(told))


def test_memory_that_runs_out_twice_ends_the_request_as_overload(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Forward, "prefill", fail)
        outcome = driver.ask(PROMPT)
    assert outcome.failed is not None
    assert outcome.failed.kind == "overloaded"
    assert outcome.failed.retry_after_s
    assert driver.ask(PROMPT).finished


def test_a_fault_while_reading_ahead_concerns_nobody(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    first = driver.ask(PROMPT)
    with monkeypatch.context() as patch:
        for step in ("plan", "prefill"):
            raise_once(patch, *STEPS[step], RuntimeError("planted"))
        driver.read_ahead(plain_prompt([*PROMPT, *PROMPT]), session="a")
        driver.run()
        driver.read_ahead(plain_prompt([*PROMPT, *PROMPT]), session="b")
        driver.run()
    assert not driver.loop.store._running
    assert driver.ask([*PROMPT, *first.token_ids[0], 5]).report.mode == "ExactAppend"
