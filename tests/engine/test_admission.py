"""Whose turn it is: fair between tenants and sessions, the head not starved, limits kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from cache.entry import RunningEntry
from cache.planner import SlotKey
from model.forward import Forward, Part, Prefilled
from model.sampling import SamplingParams
from server.engine.admission import MAX_PASSED, Allowances, LoopOptions, Ticket, WaitingLine
from server.engine.loop import EngineLoop
from server.engine.reply import Reply, Siblings
from server.events import Finished, GenerationRequest, Prefilling, Progress
from tests.fakes.cache_kit import FakeClock
from tests.fakes.driver import Driver, Outcome, chat_prompt, plain_prompt

MakeLoop = Callable[..., EngineLoop]
PROMPT = [10 + i * i % 90 for i in range(300)]
PARTS = {"prefill_tokens": 64, "shared_prefill_tokens": 32}


def ticket(name: str, *, tenant: str | None = None, session: str | None = None, n: int = 10) -> Ticket:
    slot = SlotKey.for_session(tenant, session)
    return Ticket(GenerationRequest(name, slot, plain_prompt(range(n)), 10), lambda _: None)


def line_of(*tickets: Ticket) -> WaitingLine:
    line = WaitingLine(FakeClock())
    for each in tickets:
        line.add(each)
    return line


def order(line: WaitingLine) -> Iterator[str]:
    """Everybody fits: who comes when."""
    while (taken := line.take(lambda _: True)) is not None:
        yield taken.request.id


def test_x7_one_request_of_a_tenant_waits_for_one_of_anothers_many() -> None:
    many = [ticket(f"many {i}", tenant="a") for i in range(30)]
    assert list(order(line_of(*many, ticket("hi", tenant="b"))))[:3] == ["many 0", "hi", "many 1"]


def test_x7_sessions_of_a_tenant_take_turns_too() -> None:
    agents = [ticket(f"agent {i}", tenant="a", session="agent") for i in range(9)]
    chats = [ticket(f"chat {i}", tenant="a", session="chat") for i in range(2)]
    assert list(order(line_of(*agents, *chats)))[:5] == ["agent 0", "chat 0", "agent 1", "chat 1", "agent 2"]


def test_within_a_session_the_order_is_that_of_arrival() -> None:
    names = [f"r{i}" for i in range(5)]
    assert list(order(line_of(*map(ticket, names)))) == names


def test_what_counts_are_tokens_not_requests() -> None:
    long = [ticket(f"long {i}", tenant="a", n=1000) for i in range(3)]
    short = [ticket(f"short {i}", tenant="b", n=90) for i in range(12)]
    first = list(order(line_of(*long, *short)))[:8]
    assert sum(name.startswith("short") for name in first) == 7


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    line = line_of(*[ticket(f"early {i}", tenant="a") for i in range(20)])
    for _ in range(10):
        line.take(lambda _: True)
    for i in range(10):
        line.add(ticket(f"late {i}", tenant="b"))
    soon = [name.split()[0] for name in order(line)][:10]
    assert soon.count("late") in (5, 6)


def test_a_request_that_does_not_fit_is_passed_but_not_for_ever() -> None:
    line = line_of(ticket("large"), *[ticket(f"small {i}") for i in range(MAX_PASSED + 5)])
    taken = []
    while (small := line.take(lambda request: request.id != "large")) is not None:
        taken.append(small.request.id)
    assert len(taken) == MAX_PASSED
    assert next(order(line)) == "large"


def test_a_request_over_the_budget_does_not_hold_up_short_ones(make_loop: MakeLoop) -> None:
    n_bytes = make_loop().forward.state_bytes(1024 + len(PROMPT))
    options = LoopOptions(max_running=8, **PARTS)
    driver = Driver(make_loop(budget_bytes=2 * n_bytes, options=options, stop_ids=frozenset()))
    running = driver.submit(PROMPT, session="running", max_tokens=120)
    while not has_begun(running):
        driver.loop.step()
    large = driver.submit([*PROMPT, *PROMPT, *PROMPT, *PROMPT], session="large", max_tokens=3000)
    short = driver.submit(PROMPT[:20], session="short", max_tokens=3)
    while not short.finished:
        driver.loop.step()
        assert not running.finished, "the short one had to wait"
    driver.run()
    assert large.finished


def has_begun(outcome: Outcome) -> bool:
    return any(isinstance(event, Progress | Finished) for event in outcome.events)


def test_a_short_prompt_overtakes_a_long_one_that_keeps_half_of_the_time(make_loop: MakeLoop) -> None:
    driver = Driver(make_loop(options=LoopOptions(**PARTS), stop_ids=frozenset()))
    long = driver.submit([100, *PROMPT * 6], session="long")
    driver.loop.step()
    short = driver.submit([*PROMPT[:128], 9], session="short", max_tokens=1)
    n_steps = 0
    while not has_begun(short):
        driver.loop.step()
        n_steps += 1
    assert not has_begun(long)
    assert n_steps <= 6
    driver.run()
    assert long.token_ids == Driver(make_loop(stop_ids=frozenset())).ask([100, *PROMPT * 6]).token_ids


def test_a_prompt_does_not_overtake_one_that_it_gains_from(make_loop: MakeLoop) -> None:
    driver = Driver(make_loop(options=LoopOptions(**PARTS), stop_ids=frozenset()))
    system = [1, 2, *PROMPT]
    long, short = (
        chat_prompt([system, [1, 3, *said, 2]], roles=["system", "user"], header=[1, 4, 5])
        for said in (PROMPT * 6, [9, 9])
    )
    driver.submit(long)
    driver.loop.step()
    same = driver.submit(short)
    driver.run()
    assert same.report.reused_tokens == len(system)


def test_a_request_that_waits_too_long_is_told_when_to_come_again(make_loop: MakeLoop) -> None:
    options = LoopOptions(max_running=1, queue_seconds=10, **PARTS)
    clock = FakeClock()
    driver = Driver(make_loop(options=options, stop_ids=frozenset(), clock=clock))
    running = driver.submit(PROMPT, session="a", max_tokens=50)
    late = driver.submit(PROMPT, session="b")
    driver.loop.step()
    clock.now_s = 10.0
    driver.loop.step()
    assert late.failed is None
    clock.now_s = 10.5
    driver.loop.step()
    assert late.failed is not None
    assert (late.failed.kind, late.failed.retry_after_s) == ("overloaded", 5.0)
    driver.run()
    assert running.finished


def test_one_tenant_takes_no_more_places_than_it_may(make_loop: MakeLoop) -> None:
    options = LoopOptions(max_running=4, max_running_per_key=2, **PARTS)
    driver = Driver(make_loop(options=options, stop_ids=frozenset()))
    greedy = [driver.submit([*PROMPT[:50], i], session=f"s{i}", tenant="a", max_tokens=60) for i in range(4)]
    other = driver.submit(PROMPT[:50], tenant="b", max_tokens=60)
    while not has_begun(other):
        driver.loop.step()
    for _ in range(20):
        driver.loop.step()
    assert [has_begun(outcome) for outcome in greedy] == [True, True, False, False]
    driver.run()
    assert all(outcome.finished for outcome in greedy)


def test_one_tenant_waits_in_no_more_numbers_than_it_may(make_loop: MakeLoop) -> None:
    options = LoopOptions(max_waiting_per_key=2, **PARTS)
    driver = Driver(make_loop(options=options, stop_ids=frozenset()))
    many = [driver.submit(PROMPT, session=f"s{i}", tenant="a") for i in range(3)]
    other = driver.submit(PROMPT, tenant="b")
    assert [outcome.failed is None for outcome in many] == [True, True, False]
    assert many[2].failed is not None
    assert many[2].failed.kind == "rate_limited"
    driver.run()
    assert other.finished


def test_an_account_of_tokens_fills_over_a_minute() -> None:
    clock = FakeClock()
    allowances = Allowances(600, clock)
    assert allowances.wait_s("a") == 0
    allowances.charge("a", 700)
    assert allowances.wait_s("a") == pytest.approx(10.1)
    assert allowances.wait_s("b") == 0
    clock.now_s = 10.2
    assert allowances.wait_s("a") == 0
    clock.now_s = 1000.0
    allowances.charge("a", 600)
    assert allowances.wait_s("a") > 0, "an account holds no more than a minute's worth"


def test_a_tenant_that_has_used_its_tokens_is_refused_until_there_are_more(make_loop: MakeLoop) -> None:
    clock = FakeClock()
    options = LoopOptions(tokens_per_minute=200, **PARTS)
    driver = Driver(make_loop(options=options, stop_ids=frozenset(), clock=clock))
    driver.ask(PROMPT, tenant="a")
    refused = driver.ask(PROMPT, tenant="a")
    assert refused.failed is not None
    assert refused.failed.kind == "rate_limited"
    assert refused.failed.retry_after_s == pytest.approx((306 - 200 + 1) * 60 / 200)
    assert driver.ask(PROMPT, tenant="b").finished
    clock.now_s = refused.failed.retry_after_s
    assert driver.ask(PROMPT, tenant="a").finished


# -- several replies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 4, 9])
def test_more_replies_than_places_are_those_that_more_places_give(make_loop: MakeLoop, n: int) -> None:
    sampling = SamplingParams(temperature=1.0, seed=4)
    options = LoopOptions(max_running=3, **PARTS)
    driver = Driver(make_loop(options=options, stop_ids=frozenset({2})))
    outcome = driver.submit(PROMPT, n_replies=n, sampling=sampling, max_tokens=12)
    while driver.loop.step():
        assert len(driver.loop._decoder.replies) <= 3
    wide = Driver(make_loop(options=LoopOptions(max_running=n, **PARTS), stop_ids=frozenset({2})))
    assert outcome.token_ids == wide.ask(PROMPT, n_replies=n, sampling=sampling, max_tokens=12).token_ids
    assert driver.loop.counters.n_prefilled == len(PROMPT)
    assert not driver.loop.store._running
    (entry,) = driver.loop.store._shelf.entries()
    assert entry.ids.view.tolist() == [*PROMPT, *outcome.token_ids[0]]


def test_replies_are_written_as_many_at_a_time_as_the_budget_holds(make_loop: MakeLoop) -> None:
    loop = make_loop()
    n_bytes = 3 * loop.forward.state_bytes(len(PROMPT) + 40) + 3 * loop.forward.state_bytes(0)
    driver = Driver(make_loop(budget_bytes=n_bytes + 3000, stop_ids=frozenset()))
    outcome = driver.submit(PROMPT, n_replies=6, max_tokens=40)
    while driver.loop.step():
        assert driver.loop.store.n_bytes <= driver.loop.store.budget_bytes
        assert len(driver.loop._decoder.replies) <= 2
    assert len(outcome.finished) == 6


def test_e2_replies_that_no_round_can_hold_are_refused_before_anything_is_read(make_loop: MakeLoop) -> None:
    n_bytes = make_loop().forward.state_bytes(len(PROMPT) + 6)
    driver = Driver(make_loop(budget_bytes=n_bytes * 3 // 2, stop_ids=frozenset()))
    refused = driver.ask(PROMPT, n_replies=2)
    assert refused.failed is not None
    assert (refused.failed.kind, refused.failed.param) == ("invalid", "n")
    assert str(n_bytes) in refused.failed.message
    assert driver.loop.counters.n_prefilled == 0
    assert driver.ask(PROMPT).finished


def test_a_cancel_between_two_rounds_leaves_nothing_running(make_loop: MakeLoop) -> None:
    options = LoopOptions(max_running=2, **PARTS)
    driver = Driver(make_loop(options=options, stop_ids=frozenset()))
    outcome = driver.submit(PROMPT, n_replies=7, max_tokens=5)
    while len(outcome.finished) < 3:
        driver.loop.step()
    driver.loop.cancel(outcome.id)
    driver.run()
    assert outcome.failed is not None
    assert not driver.loop.store._running


# -- how far the prompt is read ----------------------------------------------------------------------


def test_a_request_that_asks_is_told_how_far_its_prompt_is_read(make_loop: MakeLoop) -> None:
    driver = Driver(
        make_loop(options=LoopOptions(prefill_tokens=100), stop_ids=frozenset(), clock=FakeClock())
    )
    driver.ask(PROMPT[:150])
    outcome = driver.ask([*PROMPT[:150], *PROMPT], tells_prefill=True)
    told = [event for event in outcome.events if isinstance(event, Prefilling)]
    n_reused = outcome.report.reused_tokens
    assert n_reused > 64
    assert {(event.n_prompt, event.n_reused) for event in told} == {(450, n_reused)}
    assert [event.n_done for event in told] == [*range(n_reused + 100, 450, 100), 450]


def test_nobody_else_is_told_how_far_the_prompt_is_read(make_loop: MakeLoop) -> None:
    outcome = Driver(make_loop(stop_ids=frozenset())).ask(PROMPT)
    assert not any(isinstance(event, Prefilling) for event in outcome.events)


# -- prompts together --------------------------------------------------------------------------------


def test_short_prompts_that_arrive_together_are_read_in_one_pass(
    make_loop: MakeLoop, tiny_forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = Forward.prefill_together

    def counted(self: Forward, parts: Sequence[Part]) -> list[Prefilled]:
        sizes.append(len(parts))
        return original(self, parts)

    monkeypatch.setattr(tiny_forward, "reads_ragged", False)
    monkeypatch.setattr(Forward, "prefill_together", counted)
    prompts = [[100 + i, *PROMPT[: 30 + 20 * i]] for i in range(5)]
    driver = Driver(make_loop(options=LoopOptions(**PARTS), stop_ids=frozenset()))
    outcomes = [driver.submit(prompt, session=f"s{i}") for i, prompt in enumerate(prompts)]
    driver.run()
    assert sizes == [5, 3]  # three are longer than a pass takes
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.token_ids == Driver(make_loop(stop_ids=frozenset())).ask(prompt).token_ids


def test_appended_turns_of_long_conversations_are_read_in_one_pass(make_loop: MakeLoop) -> None:
    driver = Driver(make_loop(options=LoopOptions(prefill_tokens=600), stop_ids=frozenset()))
    prompts = [[100 + i, *PROMPT, *PROMPT] for i in range(4)]
    firsts = [driver.ask(prompt, session=f"s{i}") for i, prompt in enumerate(prompts)]
    turns = [[*p, *first.token_ids[0], 5, 6, 7] for p, first in zip(prompts, firsts, strict=True)]
    before = driver.loop.counters.n_steps
    outcomes = [driver.submit(turn, session=f"s{i}", max_tokens=1) for i, turn in enumerate(turns)]
    driver.run()
    assert driver.loop.counters.n_steps == before + 1
    for turn, outcome in zip(turns, outcomes, strict=True):
        assert outcome.report.mode == "ExactAppend"
        assert outcome.token_ids == Driver(make_loop(stop_ids=frozenset())).ask(turn, max_tokens=1).token_ids


def test_a_fault_in_beginning_one_of_those_read_together_leaves_the_others_alone(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    outcomes = [driver.submit([100 + i, *PROMPT[:20]], session=f"s{i}") for i in range(3)]
    make = driver.loop._maker.make

    def fail_once(siblings: Siblings, running: RunningEntry) -> Reply:
        if siblings.ticket.request.id == outcomes[0].id:
            raise RuntimeError("planted")
        return make(siblings, running)

    monkeypatch.setattr(driver.loop._maker, "make", fail_once)
    driver.run()
    assert [outcome.failed is None for outcome in outcomes] == [False, True, True]
    for i in (1, 2):
        cold = Driver(make_loop(stop_ids=frozenset())).ask([100 + i, *PROMPT[:20]])
        assert outcomes[i].token_ids == cold.token_ids
    assert len(driver.loop.store.slots()) == 3
