"""Prompts that are read in one pass: which ones, in which order, and what a cancellation or a fault does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from model.forward import Forward, Part, Prefilled, shares_of_pass
from model.layers.ragged import n_rows_in_chunks
from model.state import State
from server.engine.admission import LoopOptions
from server.engine.loop import EngineLoop
from server.events import Failed, Progress
from tests.fakes.driver import Driver, Outcome, chat_prompt

MakeLoop = Callable[..., EngineLoop]
TEXT = [10 + i * i % 90 for i in range(3000)]


def prompt(i: int, n: int) -> list[int]:
    """Prompts that share nothing with each other."""
    return [120 + i, *TEXT[7 * i : 7 * i + n - 1]]


@pytest.fixture
def passes(tiny_forward: Forward, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of each sequence in every pass, on a device that gains by reading prompts together."""
    found: list[list[int]] = []
    together, alone = Forward.prefill_together, Forward.prefill

    def noted_together(self: Forward, parts: Sequence[Part]) -> list[Prefilled]:
        found.append([len(part.ids) for part in parts])
        return together(self, parts)

    def noted_alone(self: Forward, state: State, ids: np.ndarray, **options: Any) -> Prefilled:
        found.append([len(ids)])
        return alone(self, state, ids, **options)

    monkeypatch.setattr(tiny_forward, "reads_ragged", True)
    monkeypatch.setattr(Forward, "prefill_together", noted_together)
    monkeypatch.setattr(Forward, "prefill", noted_alone)
    return found


def driver_of(make_loop: MakeLoop, **options: Any) -> Driver:
    options = {"prefill_tokens": 512, "shared_prefill_tokens": 512, "drafts": False} | options
    budget = options.pop("budget_bytes", 2**30)
    return Driver(make_loop(options=LoopOptions(**options), stop_ids=frozenset(), budget_bytes=budget))


def cold(make_loop: MakeLoop, ids: list[int], **options: Any) -> dict[int, tuple[int, ...]]:
    return driver_of(make_loop).ask(ids, **options).token_ids


def has_begun(outcome: Outcome) -> bool:
    return any(isinstance(event, Progress) for event in outcome.events)


# -- which ones ------------------------------------------------------------------------------------


def test_prompts_of_unlike_lengths_that_arrive_together_are_read_in_one_pass(
    make_loop: MakeLoop, passes: list[list[int]]
) -> None:
    driver = driver_of(make_loop)
    prompts = [prompt(i, n) for i, n in enumerate((100, 61, 150, 9))]
    outcomes = [driver.submit(p, session=f"s{i}") for i, p in enumerate(prompts)]
    driver.run()
    assert sorted(passes[0]) == [9, 61, 100, 150]
    assert len(passes) == 1
    for ids, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.token_ids == cold(make_loop, ids)


def test_a_second_turn_after_prompts_read_together_is_what_a_fresh_process_writes(
    make_loop: MakeLoop, passes: list[list[int]]
) -> None:
    driver = driver_of(make_loop)
    prompts = [prompt(i, n) for i, n in enumerate((140, 90, 170))]
    firsts = [driver.submit(p, session=f"s{i}") for i, p in enumerate(prompts)]
    driver.run()
    assert sorted(passes[0]) == [90, 140, 170]
    # One goes on, one is edited in the middle, one is sent again.
    turns = [[*prompts[0], *firsts[0].token_ids[0], 5, 6], [*prompts[1][:70], 7, 8, 9], prompts[2]]
    outcomes = [driver.submit(turn, session=f"s{i}") for i, turn in enumerate(turns)]
    driver.run()
    assert outcomes[0].report.mode == "ExactAppend"
    for turn, outcome in zip(turns, outcomes, strict=True):
        assert outcome.token_ids == cold(make_loop, turn)


def test_a_pass_takes_no_more_than_its_tokens(make_loop: MakeLoop, passes: list[list[int]]) -> None:
    driver = driver_of(make_loop)
    outcomes = [driver.submit(prompt(i, 120), session=f"s{i}", max_tokens=1) for i in range(10)]
    driver.run()
    assert all(outcome.finished for outcome in outcomes)
    assert sum(map(sum, passes)) == 1200
    assert max(map(sum, passes)) <= 512
    assert len(passes) == 3


def test_prompts_that_join_cost_a_running_reply_one_pass(
    make_loop: MakeLoop, passes: list[list[int]]
) -> None:
    driver = driver_of(make_loop)
    running = driver.submit(prompt(9, 30), session="running", max_tokens=200)
    while not has_begun(running):
        driver.loop.step()
    passes.clear()
    late = [driver.submit(prompt(i, 80 + i), session=f"s{i}", max_tokens=1) for i in range(4)]
    driver.loop.step()
    assert passes == [[80, 81, 82, 83]]
    driver.loop.step()
    assert all(outcome.finished for outcome in late)


def test_a_prompt_that_gains_from_another_waits_for_it(make_loop: MakeLoop, passes: list[list[int]]) -> None:
    messages = [[[1, *TEXT[:200]], [1, *prompt(i, 40)]] for i in range(4)]
    prompts = [chat_prompt(m, roles=("system", "user"), header=(1, 5)) for m in messages]
    driver = driver_of(make_loop)
    outcomes = [driver.submit(p, session=f"s{i}") for i, p in enumerate(prompts)]
    driver.run()
    assert passes == [[244], [43, 43, 43]]
    assert [outcome.report.reused_tokens for outcome in outcomes] == [0, 201, 201, 201]
    for one, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.token_ids == driver_of(make_loop).ask(one).token_ids


def test_prompts_join_only_as_far_as_memory_holds_all_of_them_once_they_are_read(
    make_loop: MakeLoop, passes: list[list[int]], tiny_forward: Forward
) -> None:
    empty, rows_of_one = (
        tiny_forward.state_bytes(0),
        tiny_forward.state_bytes(150) - tiny_forward.state_bytes(0),
    )
    budget = 2 * empty + tiny_forward.state_bytes(150 + 1024) + rows_of_one
    driver = driver_of(make_loop, budget_bytes=budget)
    for i in range(3):
        driver.submit(prompt(i, 150), session=f"s{i}", max_tokens=1024)
    driver.loop.step()
    assert passes == [[150, 150]]
    driver.loop.cancel_all()
    driver.run()


# -- in which order --------------------------------------------------------------------------------


def test_a_long_prompt_and_a_stream_of_short_ones_take_turns(
    make_loop: MakeLoop, passes: list[list[int]]
) -> None:
    driver = driver_of(make_loop, prefill_tokens=256, shared_prefill_tokens=256)
    long = driver.submit(prompt(0, 2500), session="long", max_tokens=1)
    driver.loop.step()
    n_steps, waited, short = 1, [], []
    while not long.finished:
        short.append((n_steps, driver.submit(prompt(1 + n_steps, 100), session=f"s{n_steps}", max_tokens=1)))
        driver.loop.step()
        n_steps += 1
        done = [(since, outcome) for since, outcome in short if outcome.finished]
        waited += [n_steps - since for since, _ in done]
        short = [each for each in short if each not in done]
    assert max(waited) <= 3
    assert n_steps <= 2 * 2500 / 256 + 2
    assert any(len(tokens) > 1 for tokens in passes)
    driver.run()


SHARES = [
    ([5000], 4096, 4096, [4096]),
    ([100, 100, 100], 512, 512, [100, 100, 100]),
    ([100, 300, 100], 512, 512, [100, 300, 0]),
    ([100, 1000, 20], 512, 512, [100, 320, 0]),
    ([4000, 10], 4096, 4096, [4000, 10]),
    ([4090, 10], 4096, 4096, [4090, 0]),
    ([64, 1], 192, 192, [64, 1]),
    ([64, 1], 191, 191, [64, 0]),
    ([10] * 16, 256, 2048, [10] * 16),  # a slow model: few tokens in its time, and memory for more
    ([100, 300, 90], 256, 2048, [100, 128, 0]),
]


@pytest.mark.parametrize(("n_left", "n_tokens", "n_rows", "wanted"), SHARES)
def test_a_pass_is_filled_from_the_front(
    n_left: list[int], n_tokens: int, n_rows: int, wanted: list[int]
) -> None:
    assert shares_of_pass(n_left, n_tokens, n_rows) == wanted


def test_no_pass_holds_more_than_its_tokens_and_its_rows() -> None:
    chance = np.random.default_rng(0)
    for _ in range(300):
        n_left = chance.integers(1, 900, chance.integers(1, 20)).tolist()
        n_rows = 64 * int(chance.integers(4, 64))
        n_tokens = int(chance.integers(256, n_rows + 1))
        first, *others = shares = shares_of_pass(n_left, n_tokens, n_rows)
        assert first == min(n_left[0], n_tokens)
        assert sum(shares) <= n_tokens
        used = sum(n_rows_in_chunks(share) for share in others if share)
        assert used == 0 or used + n_rows_in_chunks(first) <= n_rows
        assert all(share <= n for share, n in zip(shares, n_left, strict=True))
        cut = [share for share, n in zip(others, n_left[1:], strict=True) if 0 < share < n]
        assert len(cut) <= 1
        assert all(share % 64 == 0 for share in cut)


# -- ends ------------------------------------------------------------------------------------------


def test_a_cancel_of_one_of_those_read_together_keeps_what_is_read_of_it(
    make_loop: MakeLoop, passes: list[list[int]]
) -> None:
    driver = driver_of(make_loop)
    prompts = [prompt(i, n) for i, n in enumerate((130, 700, 90))]
    outcomes = [driver.submit(p, session=f"s{i}") for i, p in enumerate(prompts)]
    driver.loop.step()
    assert len(passes[0]) > 1
    driver.loop.cancel(outcomes[1].id)
    driver.run()
    assert isinstance(outcomes[1].events[-1], Failed)
    for i in (0, 2):
        assert outcomes[i].token_ids == cold(make_loop, prompts[i])
    again = driver.ask(prompts[1], session="s1")
    assert again.report.reused_tokens > 0
    assert again.token_ids == cold(make_loop, prompts[1])


def test_a_fault_in_a_pass_over_several_fails_none_of_them(
    make_loop: MakeLoop, passes: list[list[int]], tiny_forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt(i, n) for i, n in enumerate((130, 70, 90))]
    driver = driver_of(make_loop)
    outcomes = [driver.submit(p, session=f"s{i}") for i, p in enumerate(prompts)]

    def broken(*_: object) -> list[Prefilled]:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(tiny_forward, "_finish", broken)
        driver.loop.step()
    driver.run()
    assert sorted(passes[0]) == [70, 90, 130]
    assert sorted(map(len, passes[1:])) == [1, 1, 1]
    for ids, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.token_ids == cold(make_loop, ids)


def test_a_fault_of_one_prompt_fails_that_one_alone(
    make_loop: MakeLoop, passes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt(i, n) for i, n in enumerate((130, 70, 90))]
    driver = driver_of(make_loop)
    outcomes = [driver.submit(p, session=f"s{i}") for i, p in enumerate(prompts)]
    alone = Forward.prefill

    def refuses_70(ids: np.ndarray) -> None:
        if len(ids) == 70:
            raise RuntimeError("planted")

    def broken_alone(self: Forward, state: State, ids: np.ndarray, **options: Any) -> Prefilled:
        refuses_70(ids)
        return alone(self, state, ids, **options)

    def broken_together(_: Forward, parts: Sequence[Part]) -> None:
        for part in parts:
            refuses_70(part.ids)

    monkeypatch.setattr(Forward, "prefill", broken_alone)
    monkeypatch.setattr(Forward, "_together_ragged", broken_together)
    driver.run()
    assert passes == [[130, 70, 90], [130], [90]]
    assert [outcome.failed is None for outcome in outcomes] == [True, False, True]
    for i in (0, 2):
        assert outcomes[i].token_ids == cold(make_loop, prompts[i])
