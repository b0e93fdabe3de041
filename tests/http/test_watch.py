"""What is noticed on the event loop without a timer for each event, and how events come to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from server.events import Event, Progress
from server.http.run import Courier
from server.http.stream import Watch


class Hand:
    """An event loop's clock and timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.n_set = 0
        self._due: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Hand:
        self._due, self.n_set = (self.now + seconds, call), self.n_set + 1
        return self

    def cancel(self) -> None:
        self._due = None

    def move(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due is not None and self._due[0] <= until:
            (self.now, call), self._due = self._due, None
            call()
        self.now = until


def watched(seconds: float) -> tuple[Hand, Watch, list[float]]:
    """A watch on a clock moved by hand, and when it called."""
    hand, calls = Hand(), list[float]()
    return hand, Watch(seconds, lambda: calls.append(hand.now), loop=hand), calls


def test_a_watch_calls_after_every_so_many_seconds_of_silence() -> None:
    hand, watch, calls = watched(10)
    with watch:
        hand.move(35)
    hand.move(35)
    assert calls == [10, 20, 30]


def test_a_watch_calls_so_many_seconds_after_what_was_noted_last() -> None:
    hand, watch, calls = watched(10)
    with watch:
        for _ in range(6):
            hand.move(4)
            watch.noted_at = hand.now
        hand.move(9)
        assert calls == []
        hand.move(1)
    assert calls == [34]


def test_to_note_sets_no_timer() -> None:
    hand, watch, _ = watched(10)
    with watch:
        for _ in range(1000):
            watch.noted_at = hand.now
            hand.move(0.001)
    assert hand.n_set == 1


class Loop:
    """An event loop that is told what to call, and calls it when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> Any:
        self.calls.append(call)

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def grown(n_tokens: int) -> Event:
    return Progress(0, (), n_tokens=n_tokens)


def taken(queue: asyncio.Queue[Event]) -> list[int]:
    """Tokens of the events that have arrived."""
    return [queue.get_nowait().n_tokens for _ in range(queue.qsize())]  # type: ignore[union-attr]


def test_events_posted_together_wake_the_event_loop_once() -> None:
    loop = Loop()
    courier = Courier(loop)
    one, other = asyncio.Queue[Event](), asyncio.Queue[Event]()
    for i in range(3):
        courier.post(one, grown(i))
        courier.post(other, grown(10 + i))
    assert len(loop.calls) == 1
    loop.run()
    assert (taken(one), taken(other)) == ([0, 1, 2], [10, 11, 12])


def test_an_event_posted_after_a_delivery_wakes_it_again() -> None:
    loop = Loop()
    courier, queue = Courier(loop), asyncio.Queue[Event]()
    for i in range(2):
        courier.post(queue, grown(i))
        loop.run()
    assert taken(queue) == [0, 1]


def test_an_event_posted_when_the_event_loop_is_closed_is_nobodys() -> None:
    class Closed(Loop):
        def call_soon_threadsafe(self, _: Callable[[], None]) -> Any:
            raise RuntimeError("Event loop is closed")

    Courier(Closed()).post(asyncio.Queue[Event](), grown(1))
