"""Connections that are slow, half closed, cut off, or no HTTP at all."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

from server.events import Event, GenerationRequest
from server.settings import Settings
from tests.fakes.fake_engine import FakeEngine, planned, says
from tests.fakes.live_server import ASK, Live, live

WAIT_S = 30


def connect(server: Live) -> socket.socket:
    """A bare connection to ``server``."""
    host, port = server.http.base_url.host, server.http.base_url.port
    return socket.create_connection((host, port), timeout=WAIT_S)


def request_of(body: dict[str, Any], *extra: str) -> bytes:
    """A request for a chat completion."""
    content = json.dumps(body)
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        *extra,
    ]
    return ("\r\n".join(head) + "\r\n\r\n" + content).encode()


def received(connection: socket.socket) -> bytes:
    """All that the server sends until it closes."""
    chunks = []
    while chunk := connection.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


def answer_of(raw: bytes) -> tuple[int, dict[str, Any]]:
    """Status and body of the one final response in ``raw``."""
    while raw.startswith(b"HTTP/1.1 100"):
        raw = raw.partition(b"\r\n\r\n")[2]
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("stream", [False, True])
def test_h5_a_client_that_sends_no_more_gets_its_answer(stream: bool) -> None:
    half_closed = threading.Event()

    def script(request: GenerationRequest) -> Iterable[Event]:
        yield planned(request)
        assert half_closed.wait(WAIT_S)
        yield from list(says("Hello")(request))[1:]

    with live(FakeEngine(script)) as server, closing(connect(server)) as connection:
        connection.sendall(request_of({**ASK, "stream": stream}))
        assert server.engine.was_asked.wait(WAIT_S)
        connection.shutdown(socket.SHUT_WR)
        half_closed.set()
        raw = received(connection)
        assert b"Hello" in raw
        assert server.engine.cancelled == []


def test_e04_a_client_that_has_gone_is_told_from_one_that_only_listens() -> None:
    gone = threading.Event()

    def script(request: GenerationRequest) -> Iterable[Event]:
        yield planned(request)
        assert gone.wait(WAIT_S)

    engine = FakeEngine(script)
    with live(engine) as server:
        with closing(connect(server)) as connection:
            connection.sendall(request_of(ASK))
            assert engine.was_asked.wait(WAIT_S)
        assert engine.was_cancelled.wait(WAIT_S)
        gone.set()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /heal",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
        b"",
    ],
)
def test_x9_a_head_that_does_not_arrive_is_given_up(sent: bytes) -> None:
    with live(settings=Settings(receive_seconds=0.1)) as server, closing(connect(server)) as connection:
        connection.sendall(sent)
        assert answer_of(received(connection))[0] == 408


def test_x9_a_body_that_does_not_arrive_is_given_up() -> None:
    with live(settings=Settings(receive_seconds=0.1)) as server, closing(connect(server)) as connection:
        connection.sendall(request_of(ASK)[:-5])
        status, body = answer_of(received(connection))
        assert (status, body["error"]["code"]) == (408, "request_timeout")
        assert server.chat().status_code == 200


def test_x9_unfinished_bodies_hold_only_so_much_memory() -> None:
    with live(settings=Settings(max_body=100_000)) as server:
        connections = [connect(server) for _ in range(9)]
        head = request_of({**ASK, "user": "x" * 99_000})[:-10]
        for connection in connections:
            connection.sendall(head)
        refused = connections[-1].recv(65536)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in refused.lower()
        for connection in connections:
            connection.close()


def test_x9_a_client_that_leaves_inside_its_body_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    left = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "disconnected" in record.getMessage():
                left.set()

    log = logging.getLogger("crossturn.gate")
    handler = Listener()
    log.addHandler(handler)
    with live() as server, caplog.at_level(logging.INFO):
        with closing(connect(server)) as connection:
            connection.sendall(request_of(ASK)[:-5])
        assert left.wait(WAIT_S)
    log.removeHandler(handler)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
    ids=["words", "target", "lengths", "head", "smuggled"],
)
def test_x9_what_is_no_http_is_refused_in_json(sent: bytes) -> None:
    with live() as server, closing(connect(server)) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        status, body = answer_of(received(connection))
        assert status in (400, 431)
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert server.chat().status_code == 200


def test_x9_a_half_sent_request_does_not_hold_up_the_end() -> None:
    with live(settings=Settings(drain_seconds=WAIT_S)) as server, closing(connect(server)) as connection:
        connection.sendall(request_of(ASK)[:-5])
        assert server.chat().status_code == 200  # by now the other one is being received
        server.start_drain().result(timeout=WAIT_S)
        assert answer_of(received(connection))[0] == 503
