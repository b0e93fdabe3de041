"""What the engine gives back when memory is short, and when nothing is done."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from server.engine import thread as thread_module
from server.engine.loop import EngineLoop
from server.engine.thread import CHECK_S, Relief
from tests.fakes.cache_kit import FakeClock
from tests.fakes.driver import Driver

BUDGET = 2**26


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "LEAST_BUDGET_BYTES", 2**16)


class Machine:
    """A loop that remembers a few conversations, on a machine whose memory a test decides about."""

    def __init__(self, loop: EngineLoop) -> None:
        self.store, self.clock = loop.store, FakeClock()
        self.is_short = False
        self.n_questions = 0
        self.relief = Relief(self.store, self._ask, self.clock)
        driver = Driver(loop)
        for i in range(6):
            prompt = np.random.default_rng(i).integers(3, 250, 40).tolist()
            driver.ask(prompt, session=f"session {i}")

    def _ask(self) -> bool:
        self.n_questions += 1
        return self.is_short

    def pass_time(self) -> None:
        self.clock.now_s += CHECK_S
        self.relief.check()


@pytest.fixture
def machine(make_loop: Callable[..., EngineLoop]) -> Machine:
    return Machine(make_loop(budget_bytes=BUDGET))


def test_m4_while_memory_is_short_conversations_go_and_the_budget_with_them(machine: Machine) -> None:
    held = machine.store.n_bytes
    machine.is_short = True
    machine.pass_time()
    assert machine.store.n_bytes <= held * 3 // 4
    assert machine.store.budget_bytes <= held * 3 // 4
    for _ in range(50):
        machine.pass_time()
    assert machine.store.budget_bytes == 2**16
    machine.store.check()


def test_m4_afterwards_the_budget_grows_back_step_by_step(machine: Machine) -> None:
    machine.is_short = True
    machine.pass_time()
    machine.is_short = False
    budgets = []
    for _ in range(20):
        machine.pass_time()
        budgets.append(machine.store.budget_bytes)
    assert budgets == sorted(budgets)
    assert budgets[0] < BUDGET == budgets[-1]


def test_m4_the_machine_is_asked_no_more_often_than_every_two_seconds(machine: Machine) -> None:
    for _ in range(100):
        machine.relief.check()
    asked = machine.n_questions
    assert asked <= 1
    machine.pass_time()
    assert machine.n_questions == asked + 1


def test_m4_at_rest_the_pool_of_freed_buffers_is_empty(machine: Machine) -> None:
    pool = mx.zeros((1 << 20,))
    mx.eval(pool)
    del pool
    machine.relief.rest()
    assert mx.get_cache_memory() == 0


def test_what_may_rest_beyond_the_budget_stays_while_memory_is_not_short(machine: Machine) -> None:
    machine.store._may_rest_bytes = 2 * BUDGET  # as after a conversation larger than the budget
    machine.pass_time()
    assert machine.store.limit_bytes == 2 * BUDGET
    machine.store.check()
