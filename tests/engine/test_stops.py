"""Stop strings: where the reply ends, what is remembered, and what that costs."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest

from model.forward import Forward
from model.sampling import SamplingParams
from server.engine.admission import LoopOptions
from server.engine.loop import EngineLoop
from server.engine.reply import STOP_STATE_GAP
from server.events import Progress, ReplyFormat
from tests.fakes.driver import Driver

MakeLoop = Callable[..., EngineLoop]
PROMPT = [10 + i * i % 90 for i in range(300)]
SEEDED = SamplingParams(temperature=1.0, seed=3)
NEVER = ReplyFormat(stops=("this is never written",))


def test_m5_a_stop_string_costs_no_evaluation_a_token(
    make_loop: MakeLoop, demo_forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations: list[int] = []
    original = mx.eval

    def counted(*arrays: object) -> None:
        evaluations.append(len(arrays))
        original(*arrays)

    def n_evaluations(form: ReplyFormat) -> int:
        drivers = Driver(make_loop(forward=demo_forward, stop_ids=frozenset()))
        outcomes = [
            drivers.submit([*PROMPT, i], session=f"s{i}", max_tokens=STOP_STATE_GAP, reply=form)
            for i in range(2)
        ]
        while not all(any(isinstance(e, Progress) for e in outcome.events) for outcome in outcomes):
            drivers.loop.step()
        evaluations.clear()
        with monkeypatch.context() as patch:
            patch.setattr(mx, "eval", counted)
            for _ in range(24):
                drivers.loop.step()
        return len(evaluations)

    assert n_evaluations(NEVER) == n_evaluations(ReplyFormat())


@pytest.mark.parametrize("n_written", [3, STOP_STATE_GAP + 5, 3 * STOP_STATE_GAP])
def test_of_a_reply_with_stop_strings_one_state_is_kept_and_counted(
    make_loop: MakeLoop, n_written: int
) -> None:
    options = LoopOptions(prefill_tokens=128, shared_prefill_tokens=64, checks_store=True, drafts=False)
    driver = Driver(make_loop(options=options, stop_ids=frozenset()))
    outcome = driver.submit(PROMPT, max_tokens=200, reply=NEVER)
    while max((e.n_tokens for e in outcome.events if isinstance(e, Progress)), default=0) < n_written:
        driver.loop.step()
    driver.loop.store.check()
    (reply,) = driver.loop._decoder.replies
    (kept,) = [length for length in reply.running.ring.lengths if length >= len(PROMPT)]
    assert n_written - STOP_STATE_GAP <= kept - len(PROMPT) <= n_written
    driver.run()
    (entry,) = driver.loop.store._shelf.entries()
    assert all(length < len(PROMPT) for length in entry.ring.lengths)


@pytest.mark.parametrize("at", [4, 30, 60, 100])
@pytest.mark.parametrize("reads_ahead", [True, False])
def test_behind_a_stop_string_the_next_turn_is_right_wherever_the_text_was_cut(
    make_loop: MakeLoop, at: int, reads_ahead: bool
) -> None:
    whole = Driver(make_loop(stop_ids=frozenset())).ask(PROMPT, max_tokens=140, sampling=SEEDED)
    text = whole.text()
    stop = text[at : at + 5]
    assert text.index(stop) == at
    options = LoopOptions(
        prefill_tokens=128, shared_prefill_tokens=64, idle_prefill=reads_ahead, checks_store=True
    )
    driver = Driver(make_loop(options=options, stop_ids=frozenset()))
    outcome = driver.ask(PROMPT, max_tokens=140, sampling=SEEDED, reply=ReplyFormat(stops=(stop,)))
    assert outcome.finished[0].reason == "stop"
    assert outcome.text() == text[: text.index(stop)]
    (entry,) = driver.loop.store._shelf.entries()
    fed = entry.ids.view.tolist()
    assert fed == [*PROMPT, *whole.token_ids[0]][: len(fed)]
    assert len(PROMPT) <= len(fed) < len(PROMPT) + outcome.finished[0].n_tokens
    follow = [*PROMPT, *whole.token_ids[0][: len(fed) - len(PROMPT) + 2], 5, 6]
    assert driver.ask(follow).token_ids == Driver(make_loop(stop_ids=frozenset())).ask(follow).token_ids


def test_the_tokens_before_a_cut_are_fed_again_in_idle_time(
    make_loop: MakeLoop,
) -> None:
    text = Driver(make_loop(stop_ids=frozenset())).ask(PROMPT, max_tokens=80, sampling=SEEDED).text()
    driver = Driver(make_loop(stop_ids=frozenset()))
    outcome = driver.submit(PROMPT, max_tokens=80, sampling=SEEDED, reply=ReplyFormat(stops=(text[50:55],)))
    while not outcome.finished:
        driver.loop.step()
    (before,) = driver.loop.store._shelf.entries()
    n_before = len(before)
    driver.run()
    (after,) = driver.loop.store._shelf.entries()
    assert n_before < len(after) < len(PROMPT) + outcome.finished[0].n_tokens
    assert driver.loop.counters.n_read_ahead == len(after) - n_before <= STOP_STATE_GAP + 9
