"""What becomes of single requests: their events, their ends, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cache.planner import SlotKey
from model.devices.metal.device import MetalDevice
from model.forward import Forward
from model.sampling import SamplingParams
from model.text.tokenizer import TextTokenizer
from server.engine.admission import LoopOptions
from server.engine.assembly import EngineOptions, assemble, default_budget
from server.engine.loop import EngineLoop
from server.events import Finished, Planned, Progress, ReplyFormat, WarmRequest
from server.settings import Settings
from tests.fakes import tiny
from tests.fakes.driver import Driver, Outcome, chat_prompt, plain_prompt

MakeLoop = Callable[..., EngineLoop]

PROMPT = [10 + i * i % 90 for i in range(300)]


@pytest.fixture
def driver(make_loop: MakeLoop) -> Driver:
    return Driver(make_loop(stop_ids=frozenset()))


def cold(make_loop: MakeLoop, prompt: list[int], **options: object) -> Outcome:
    return Driver(make_loop(stop_ids=frozenset())).ask(prompt, **options)


def ids_fed(driver: Driver) -> list[int]:
    """Of the one entry in the store."""
    (entry,) = driver.loop.store._shelf.entries()
    return entry.ids.view.tolist()


def test_a_request_is_planned_then_grows_then_finishes(driver: Driver) -> None:
    outcome = driver.ask(PROMPT, max_tokens=5)
    kinds = [type(event) for event in outcome.events]
    assert kinds[0] is Planned
    assert kinds[-1] is Finished
    assert set(kinds[1:-1]) == {Progress}
    assert outcome.finished[0].reason == "length"
    assert outcome.finished[0].n_tokens == 5


def test_the_next_turn_continues_where_the_reply_ended(driver: Driver, make_loop: MakeLoop) -> None:
    first = driver.ask(PROMPT)
    longer = [*PROMPT, *first.token_ids[0], 7, 8, 9]
    second = driver.ask(longer)
    assert second.report.mode == "ExactAppend"
    assert second.report.reused_tokens == len(longer) - 3
    assert second.report.prefilled_tokens == 3
    assert second.token_ids == cold(make_loop, longer).token_ids


def test_a_stop_token_ends_the_reply_and_is_remembered_as_fed(make_loop: MakeLoop) -> None:
    reply = cold(make_loop, PROMPT, max_tokens=8).token_ids[0]
    driver = Driver(make_loop(stop_ids=frozenset({reply[3]})))
    outcome = driver.ask(PROMPT, max_tokens=8)
    n_before = reply.index(reply[3])
    assert outcome.finished[0].reason == "stop"
    assert outcome.token_ids[0] == reply[: n_before + 1]
    assert ids_fed(driver) == [*PROMPT, *reply[: n_before + 1]]


def test_a_stop_string_cuts_the_text_and_the_entry_ends_before_the_cut(make_loop: MakeLoop) -> None:
    whole = cold(make_loop, PROMPT, max_tokens=12)
    stop = whole.text()[4:6]
    driver = Driver(make_loop(stop_ids=frozenset()))
    outcome = driver.ask(PROMPT, max_tokens=12, reply=ReplyFormat(stops=(stop,)))
    assert outcome.finished[0].reason == "stop"
    assert outcome.text() == whole.text()[: whole.text().index(stop)]
    fed = ids_fed(driver)
    assert fed == [*PROMPT, *whole.token_ids[0]][: len(fed)]
    assert len(PROMPT) <= len(fed) < len(PROMPT) + outcome.finished[0].n_tokens
    follow = [*fed, 5, 6]
    assert driver.ask(follow).token_ids == cold(make_loop, follow).token_ids


@pytest.mark.parametrize("n_steps", [0, 1, 2, 3, 4, 6])
def test_a_cancel_at_any_point_keeps_the_work_done_and_the_retry_is_right(
    make_loop: MakeLoop, n_steps: int
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    outcome = driver.submit(PROMPT, max_tokens=50)
    for _ in range(n_steps):
        driver.loop.step()
    driver.loop.cancel(outcome.id)
    driver.run()
    assert outcome.failed is not None
    assert outcome.failed.kind == "cancelled"
    assert outcome.events[-1] is outcome.failed
    assert driver.loop.counters.n_prefilled == min(128 * n_steps, len(PROMPT))
    retry = driver.ask(PROMPT, max_tokens=6)
    assert retry.token_ids == cold(make_loop, PROMPT, max_tokens=6).token_ids
    if n_steps >= 1:
        assert retry.report.reused_tokens >= min(n_steps, 2) * 64


def test_a_cancel_of_an_unknown_or_finished_request_is_ignored(driver: Driver) -> None:
    outcome = driver.ask(PROMPT)
    driver.loop.cancel("nobody")
    driver.loop.cancel(outcome.id)
    driver.run()
    assert outcome.failed is None


def test_several_replies_share_one_prefill_and_greedy_ones_are_equal(driver: Driver) -> None:
    outcome = driver.ask(PROMPT, n_replies=3)
    assert driver.loop.counters.n_prefilled == len(PROMPT)
    assert outcome.token_ids[0] == outcome.token_ids[1] == outcome.token_ids[2]
    assert len(outcome.finished) == 3


def test_of_several_replies_the_first_one_is_remembered(driver: Driver) -> None:
    outcome = driver.ask(PROMPT, n_replies=3, sampling=SamplingParams(temperature=1.0, seed=5))
    assert len(set(outcome.token_ids.values())) == 3
    assert ids_fed(driver) == [*PROMPT, *outcome.token_ids[0]]


def test_seeded_replies_do_not_depend_on_what_else_runs(make_loop: MakeLoop) -> None:
    sampling = SamplingParams(temperature=1.0, seed=11)
    alone = cold(make_loop, PROMPT, sampling=sampling, max_tokens=12)
    driver = Driver(make_loop(stop_ids=frozenset()))
    others = [driver.submit([*PROMPT[i:], i], max_tokens=9 + i, session=f"s{i}") for i in range(4)]
    among = driver.submit(PROMPT, sampling=sampling, max_tokens=12, session="own")
    driver.run()
    assert among.token_ids == alone.token_ids
    assert all(other.finished for other in others)


def test_greedy_replies_written_together_are_those_written_alone(make_loop: MakeLoop) -> None:
    prompts = [[*PROMPT[: 40 * i + 30], 100 + i] for i in range(6)]
    driver = Driver(make_loop(stop_ids=frozenset()))
    together = [driver.submit(prompt, max_tokens=10 + i, session=f"s{i}") for i, prompt in enumerate(prompts)]
    driver.run()
    for i, (prompt, outcome) in enumerate(zip(prompts, together, strict=True)):
        assert outcome.token_ids == cold(make_loop, prompt, max_tokens=10 + i).token_ids


def test_more_requests_than_places_wait_their_turn(make_loop: MakeLoop) -> None:
    options = LoopOptions(max_running=2, prefill_tokens=128, shared_prefill_tokens=64)
    driver = Driver(make_loop(options=options, stop_ids=frozenset()))
    outcomes = [driver.submit([*PROMPT, i], session=f"s{i}") for i in range(5)]
    for _ in range(40):
        driver.loop.step()
        assert driver.loop.stats().n_running <= 3  # two that are written and one that is read
    driver.run()
    assert all(outcome.finished for outcome in outcomes)


def test_a_request_too_many_is_refused_and_those_that_wait_are_served(make_loop: MakeLoop) -> None:
    options = LoopOptions(max_waiting=2, prefill_tokens=128, shared_prefill_tokens=64)
    driver = Driver(make_loop(options=options, stop_ids=frozenset()))
    outcomes = [driver.submit([*PROMPT, i], session=f"s{i}") for i in range(3)]
    driver.run()
    refused = outcomes[2].failed
    assert refused is not None
    assert refused.kind == "overloaded"
    assert refused.retry_after_s is not None
    assert all(outcome.finished for outcome in outcomes[:2])


def test_a_fault_in_a_prefill_fails_that_request_alone(
    driver: Driver, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.ask(PROMPT, session="kept")
    prefill = Forward.prefill

    def fail(self: Forward, state: object, ids: np.ndarray, **options: object) -> object:
        if 77_777 in ids:
            raise RuntimeError("planted")
        return prefill(self, state, ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Forward, "prefill", fail)
    bad = driver.submit([*PROMPT, 77_777], session="kept")
    good = driver.submit(PROMPT[:200], session="other")
    driver.run()
    assert bad.failed is not None
    assert bad.failed.kind == "internal"
    assert good.token_ids == cold(make_loop, PROMPT[:200]).token_ids
    again = driver.ask(PROMPT, session="kept")
    assert again.token_ids == cold(make_loop, PROMPT).token_ids


def test_a_fault_in_a_decode_step_fails_what_runs_and_the_loop_goes_on(
    driver: Driver, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [driver.submit([*PROMPT, i], session=f"s{i}", max_tokens=60) for i in range(2)]
    while driver.loop.stats().n_waiting or not all(len(o.events) > 1 for o in outcomes):
        driver.loop.step()
    with monkeypatch.context() as patch:
        patch.setattr("server.engine.picking.sample_rows", _raise)
        driver.loop.step()
    driver.run()
    assert all(outcome.failed is not None for outcome in outcomes)
    assert driver.ask(PROMPT).token_ids == cold(make_loop, PROMPT).token_ids


def test_a_fault_in_reading_one_reply_leaves_the_others_alone(
    driver: Driver, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = driver.submit(PROMPT, session="good", max_tokens=20)
    bad = driver.submit([*PROMPT, 3], session="bad", max_tokens=20)
    while not any(isinstance(event, Progress) for event in bad.events):
        driver.loop.step()
    reply = next(reply for reply in driver.loop._decoder.replies if reply.request.id == bad.id)
    monkeypatch.setattr(reply.reader, "push_all", _raise)
    driver.run()
    assert bad.failed is not None
    assert good.token_ids == cold(make_loop, PROMPT, max_tokens=20).token_ids


def test_the_thought_is_closed_when_its_budget_is_spent(make_loop: MakeLoop, demo_forward: Forward) -> None:
    driver = Driver(make_loop(forward=demo_forward, stop_ids=frozenset()))
    prompt = plain_prompt(PROMPT)
    prompt = type(prompt)(prompt.ids, opens_thought=True)
    outcome = driver.ask(prompt, max_tokens=30, reply=ReplyFormat(max_thought_tokens=7))
    finished = outcome.finished[0]
    assert 7 < finished.n_reasoning_tokens <= 7 + 4
    assert finished.n_tokens == 30
    assert outcome.text()


def test_reading_ahead_turns_the_known_part_of_the_next_prompt_into_reuse(
    driver: Driver, make_loop: MakeLoop
) -> None:
    header = [1, 4, 5]
    first = chat_prompt([[1, 3, *PROMPT]], roles=["user"], header=header)
    driver.ask(first)
    known = chat_prompt([[1, 3, *PROMPT], [1, 4, 50, 51, 52, 2]], roles=["user", "assistant"], header=[1, 3])
    n_read = driver.loop.counters.n_prefilled
    driver.read_ahead(known)
    driver.run()
    assert driver.loop.counters.n_read_ahead > 0
    assert driver.loop.counters.n_prefilled == n_read + driver.loop.counters.n_read_ahead
    following = chat_prompt(
        [[1, 3, *PROMPT], [1, 4, 50, 51, 52, 2], [1, 3, 60, 61, 2]],
        roles=["user", "assistant", "user"],
        header=header,
    )
    outcome = driver.ask(following)
    assert outcome.report.mode == "ExactAppend"
    assert outcome.report.reused_tokens == len(known.ids)
    assert outcome.token_ids == cold(make_loop, following.ids.tolist()).token_ids


def test_an_edit_of_a_message_whose_header_was_read_ahead_goes_back_to_that_header(
    driver: Driver, make_loop: MakeLoop
) -> None:
    header = [1, 4, 5]
    told = [[1, 3, *PROMPT], [1, 4, 50, 51, 52, 2]]
    known = chat_prompt(told, roles=["user", "assistant"], header=[1, 3])
    driver.ask(chat_prompt(told[:1], roles=["user"], header=header))
    driver.read_ahead(known)
    driver.run()
    roles = ["user", "assistant", "user"]
    driver.ask(chat_prompt([*told, [1, 3, 60, 61, 2]], roles=roles, header=header))
    edited = chat_prompt([*told, [1, 3, 70, 71, 2]], roles=roles, header=header)
    outcome = driver.ask(edited)
    assert outcome.report.reused_tokens == len(known.ids)
    assert outcome.token_ids == cold(make_loop, edited.ids.tolist()).token_ids


def test_a_reply_is_made_anew_from_its_header_though_the_next_turn_was_read_ahead(driver: Driver) -> None:
    told = [[1, 2, *[7] * 100, 2], [1, 3, *PROMPT], [1, 4, 50, 51, 52, 2]]
    roles = ["system", "user", "assistant"]
    prompt = chat_prompt(told[:2], roles=roles[:2], header=[1, 4, 5])
    driver.ask(prompt)
    driver.read_ahead(chat_prompt(told, roles=roles, header=[1, 3]))
    driver.run()
    assert driver.ask(prompt).report.reused_tokens == len(prompt.ids) - 1


def test_a_prompt_that_was_asked_twice_is_answered_once_more_for_a_single_token(
    driver: Driver, make_loop: MakeLoop
) -> None:
    whole = chat_prompt([[1, 3, *PROMPT]], roles=["user"], header=[1, 4, 5, 6, 7])
    prompt = replace(whole, shared_points=(len(whole.ids) - 3,))
    outcomes = [driver.ask(prompt) for _ in range(4)]
    assert [outcome.report.prefilled_tokens for outcome in outcomes] == [len(prompt.ids), 3, 1, 1]
    assert all(outcome.token_ids == cold(make_loop, prompt.ids.tolist()).token_ids for outcome in outcomes)


def test_few_tokens_are_left_to_the_next_turn(driver: Driver) -> None:
    (reply,) = driver.ask(PROMPT).token_ids.values()
    known = plain_prompt([*PROMPT, *reply, *range(20, 30)])
    slot = SlotKey.for_session(None, None)
    n_read = driver.loop.counters.n_prefilled
    for least, is_fed in ((12, False), (10, True)):
        driver.loop.read_ahead(WarmRequest(f"ahead {least}", slot, known, least_tokens=least))
        driver.run()
        assert driver.loop.counters.n_read_ahead == driver.loop.counters.n_prefilled - n_read
        assert (driver.loop.counters.n_read_ahead >= 10) == is_fed


def test_a_request_interrupts_reading_ahead_and_keeps_what_was_read(driver: Driver) -> None:
    known = plain_prompt([*PROMPT, *PROMPT])
    driver.read_ahead(known)
    driver.loop.step()
    outcome = driver.ask([*PROMPT, 9], session="other")
    assert outcome.finished
    later = driver.ask([*PROMPT, *PROMPT, 4])
    assert later.report.reused_tokens >= 128


def test_a_conversation_larger_than_the_budget_rests_until_another_needs_the_room(
    make_loop: MakeLoop,
) -> None:
    driver = Driver(make_loop(budget_bytes=1000, stop_ids=frozenset()))
    outcome = driver.ask(PROMPT)
    assert outcome.token_ids == cold(make_loop, PROMPT).token_ids
    longer = [*PROMPT, *outcome.token_ids[0], 9]
    again = driver.ask(longer)
    assert again.report.mode == "ExactAppend"
    assert again.token_ids == cold(make_loop, longer).token_ids
    driver.ask([7, 8, 9], session="other")
    assert len(driver.loop.store.slots()) <= 1
    driver.loop.store.budget_bytes = 1000
    driver.loop.store.enforce()
    assert driver.loop.store.n_bytes <= 1000


def test_what_is_idle_gives_way_before_a_request_has_to_wait(make_loop: MakeLoop) -> None:
    n_bytes = make_loop().forward.state_bytes(len(PROMPT) + 6)
    driver = Driver(make_loop(budget_bytes=n_bytes * 5 // 2, stop_ids=frozenset()))
    for i in range(2):
        driver.ask([*PROMPT, i], session=f"idle {i}")
    store = driver.loop.store
    assert store.n_bytes + 2 * n_bytes > store.budget_bytes
    outcomes = [driver.submit([*PROMPT, 10 + i], session=f"new {i}", max_tokens=6) for i in range(2)]
    while driver.loop.stats().n_running != 2:
        assert driver.loop.step(), "the second request waits though something idle could go"
    driver.run()
    assert all(outcome.finished for outcome in outcomes)


def test_tenants_share_nothing_though_they_say_the_same(make_loop: MakeLoop) -> None:
    driver = Driver(make_loop(stop_ids=frozenset()))
    system = [1, 2, *PROMPT]
    prompt = chat_prompt([system, [1, 3, 20, 30, 2]], roles=["system", "user"], header=[1, 4, 5])
    first = driver.ask(prompt, tenant="me", session="a")
    second = driver.ask(prompt, tenant="you", session="a")
    assert second.report.reused_tokens == 0
    assert second.token_ids == first.token_ids
    assert driver.ask(prompt, tenant="you", session="b").report.reused_tokens >= len(system)


def test_m4_a_mac_shares_what_the_weights_leave_with_its_desktop(tiny_forward: Forward) -> None:
    machine = MetalDevice("a chip", 2**34)
    assert default_budget(machine, tiny_forward.n_weight_bytes) == (2**34 - tiny_forward.n_weight_bytes) // 2


def test_prompts_are_read_in_parts_for_which_the_budget_leaves_room(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    path = tiny.write_text(tmp_path)
    sizes = []
    for budget in (2**20, 2**60):
        loop, _ = assemble(EngineOptions(path, Settings(memory_budget=budget)), tokenizer)
        sizes.append(loop.forward.part_tokens)
    assert sizes == [512, 256]


def test_parallel_questions_over_one_system_prompt_read_it_once(driver: Driver, make_loop: MakeLoop) -> None:
    system = [1, 2, *PROMPT]
    chats = [[1, 3, 20 + i, 30 + i, 2] for i in range(6)]
    prompts = [chat_prompt([system, chat], roles=["system", "user"], header=[1, 4, 5]) for chat in chats]
    outcomes = [driver.submit(prompt) for prompt in prompts]
    driver.run()
    n_least = len(system) + sum(len(prompt.ids) - len(system) for prompt in prompts)
    assert driver.loop.counters.n_prefilled <= n_least
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.token_ids == cold(make_loop, prompt.ids.tolist()).token_ids


def _raise(*_: object) -> object:
    raise RuntimeError("planted")


def test_the_budget_is_looked_at_whenever_a_step_has_taken_memory(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LoopOptions(prefill_tokens=128, shared_prefill_tokens=64, drafts=False)
    driver = Driver(make_loop(options=options, stop_ids=frozenset()))
    looks: list[int] = []
    monkeypatch.setattr(driver.loop.store, "enforce", lambda: looks.append(driver.loop.store.n_bytes))
    driver.submit(PROMPT, session="a", max_tokens=700)
    driver.submit(PROMPT[:100], session="b", max_tokens=700)
    n_steps = 0
    while driver.loop.step():
        n_steps += 1
        assert looks[-1] == driver.loop.store.n_bytes
    assert len(looks) < n_steps / 10


@pytest.mark.parametrize(
    ("form", "n_tokens"),
    [(ReplyFormat(), 1), (ReplyFormat(min_tokens=4), 5), (ReplyFormat(ignore_eos=True), 9)],
)
@pytest.mark.parametrize("n_replies", [1, 2])
def test_h1_a_reply_ends_by_itself_only_when_it_is_long_enough(
    make_loop: MakeLoop, form: ReplyFormat, n_tokens: int, n_replies: int
) -> None:
    driver = Driver(make_loop(stop_ids=frozenset(range(128))))
    bias = tuple((end, 50.0) for end in range(128))
    outcome = driver.ask(
        PROMPT,
        max_tokens=9,
        reply=form,
        n_replies=n_replies,
        sampling=SamplingParams(temperature=0.0, logit_bias=bias),
    )
    for end in outcome.finished.values():
        assert end.n_tokens == n_tokens
        assert end.reason == ("length" if form.ignore_eos else "stop")
        assert all(token >= 128 for token in end.token_ids[: 4 if form.min_tokens else 0])
