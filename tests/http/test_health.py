"""Health: a server that is up, busy, or stuck."""

from __future__ import annotations

from server.client import EngineStats
from server.native.health import Pulse
from tests.fakes.cache_kit import FakeClock
from tests.fakes.live_server import live


def stats(n_steps: int, n_running: int) -> EngineStats:
    return EngineStats(n_steps=n_steps, n_running=n_running, n_waiting=0)


def test_a_server_that_is_up_is_healthy() -> None:
    with live() as server:
        response = server.http.get("/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "running": 0, "waiting": 0}


def test_an_engine_that_moves_or_rests_is_not_stalled() -> None:
    clock = FakeClock()
    pulse = Pulse(clock, stall_s=10)
    for n_steps, n_running in ((0, 0), (0, 0), (1, 1), (2, 1), (2, 0), (2, 0)):
        assert not pulse.is_stalled(stats(n_steps, n_running))
        clock.now_s += 100


def test_an_engine_that_has_work_and_stands_still_is_stalled_until_it_moves() -> None:
    clock = FakeClock()
    pulse = Pulse(clock, stall_s=10)
    assert not pulse.is_stalled(stats(5, 1))
    clock.now_s = 10
    assert not pulse.is_stalled(stats(5, 1))
    clock.now_s = 11
    assert pulse.is_stalled(stats(5, 1))
    assert not pulse.is_stalled(stats(6, 1))
