"""Slow readers, slow senders, pipelined requests, and many at once: bounded, and each answered.

``scripts/test tests/reliability/test_connections.py -s --clients 300`` takes a minute.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from model.text.deltas import ContentDelta
from server.events import Event, GenerationRequest, Progress
from server.settings import Settings
from tests.fakes.fake_engine import FakeEngine, planned
from tests.fakes.live_server import ASK, Live, live, live_demo
from tests.http.test_connection import WAIT_S, connect, received, request_of


def test_pipelined_requests_are_answered_in_their_order() -> None:
    n_requests = 20
    with live() as server, closing(connect(server)) as connection:
        connection.sendall(
            b"".join(
                request_of({**ASK, "messages": [{"role": "user", "content": f"Number {number}"}]})
                if number % 2
                else b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
                for number in range(n_requests)
            )
            + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        raw = received(connection)
        assert raw.count(b"HTTP/1.1 200") == n_requests + 1
        order = [
            b"version" if part.find(b'"version"') >= 0 else b"reply"
            for part in raw.split(b"HTTP/1.1 200")[1:-1]
        ]
        assert order == [b"reply" if number % 2 else b"version" for number in range(n_requests)]


def test_a_client_that_reads_nothing_holds_no_more_than_a_connection_buffers() -> None:
    n_made = 0

    def script(request: GenerationRequest) -> Iterable[Event]:
        nonlocal n_made
        yield planned(request)
        while n_made < 2_000 and not engine.was_cancelled.wait(0):
            n_made += 1
            yield Progress(0, (ContentDelta("x" * 50_000),), (), n_made)
        assert engine.was_cancelled.wait(WAIT_S)

    engine = FakeEngine(script)
    with live(engine, settings=Settings(stall_seconds=0.5)) as server, closing(connect(server)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request_of({**ASK, "stream": True}))
        assert engine.was_cancelled.wait(WAIT_S)
        assert not server.gateway._live
        assert server.http.get("/health").status_code == 200


def test_x9_many_slow_senders_are_given_up_and_hold_nobody_up(request: pytest.FixtureRequest) -> None:
    n_clients = request.config.getoption("--clients")
    head, _, body = request_of(ASK).partition(b"\r\n\r\n")
    with live(settings=Settings(receive_seconds=0.6)) as server:
        over = threading.Event()
        connections = [connect(server) for _ in range(n_clients)]

        def drip() -> None:
            """A byte at a time: of the head at every other one, of the body at the rest."""
            for sent in [head[i : i + 1] for i in range(len(head))] * 100:
                if over.wait(0.05):
                    return
                for number, connection in enumerate(connections):
                    try:
                        connection.sendall(sent if number % 2 else b"x")
                    except OSError:
                        continue

        for connection in connections[::2]:
            connection.sendall(head + b"\r\n\r\n" + body[:3])
        dripping = threading.Thread(target=drip)
        dripping.start()
        for _ in range(5):
            assert server.chat().status_code == 200
        for connection in connections:
            try:
                told = received(connection)
            except ConnectionResetError:  # it was still sending when it was given up
                told = b""
            assert told == b"" or told.startswith((b"HTTP/1.1 408", b"HTTP/1.1 400"))
            connection.close()
        over.set()
        dripping.join()
        assert server.gateway.arrivals._n_bytes == 0
        assert server.chat().status_code == 200


@pytest.mark.slow
def test_of_many_requests_at_once_each_is_answered_or_told_when_to_come_back(
    request: pytest.FixtureRequest,
) -> None:
    n_clients, told = request.config.getoption("--clients"), Counter[object]()
    with live_demo(memory_budget=64 * 2**20) as server:
        right = one(server, "first", timeout=60).json()["choices"][0]["message"]
        at_once = threading.Barrier(n_clients)

        def ask(number: int) -> None:
            at_once.wait(WAIT_S)
            answer = one(server, f"client {number}", timeout=300)
            told[answer.status_code] += 1
            if answer.status_code == 200:
                assert answer.json()["choices"][0]["message"] == right
            else:
                assert answer.status_code == 503
                assert answer.headers["retry-after"]

        with ThreadPoolExecutor(n_clients) as clients:
            list(clients.map(ask, range(n_clients)))
        stats = server.engine.stats()
        assert (stats.n_running, stats.n_waiting) == (0, 0)
        server.engine.call(lambda store: store.check()).result()
    print(dict(told))
    assert told.total() == n_clients


def one(server: Live, session: str, timeout: float) -> httpx.Response:
    body = {**ASK, "temperature": 0, "enable_thinking": False, "max_tokens": 12}
    url = f"{server.url}/chat/completions"
    return httpx.post(
        url, content=json.dumps(body), headers={**JSON, "X-Session-Id": session}, timeout=timeout
    )


JSON = {"Content-Type": "application/json"}
