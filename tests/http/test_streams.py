"""How streams live and end: keep-alives, errors midway, clients that leave, an engine that stands still."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from model.text.deltas import ContentDelta
from server.events import Event, Failed, Finished, GenerationRequest, Progress
from server.settings import Settings
from tests.fakes.fake_engine import FakeEngine, planned, replies, says
from tests.fakes.live_server import ASK, Live, error_of, live

WAIT_S = 20


def frames_of(text: str) -> list[Any]:
    """The data frames of a stream, parsed; ``[DONE]`` as it is."""
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in data]


class Gate:
    """A script that says one word and then waits until the test opens the gate."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, request: GenerationRequest) -> Iterable[Event]:
        yield planned(request)
        yield Progress(0, (ContentDelta("one"),), n_tokens=7)
        assert self.opened.wait(WAIT_S)
        yield Progress(0, (ContentDelta(" two"),))
        yield Finished(0, "stop", 3, 0)


def test_e10_a_proxy_neither_buffers_nor_keeps_a_stream() -> None:
    with live() as server:
        headers = server.chat(stream=True).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers


def test_comments_keep_a_silent_stream_alive() -> None:
    gate = Gate()
    with (
        live(FakeEngine(gate), settings=Settings(keep_alive_seconds=0.01)) as server,
        server.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as response,
    ):
        lines: list[str] = []
        for line in response.iter_lines():
            lines.append(line)
            if lines.count(": keep-alive") == 3:
                gate.opened.set()
    assert lines.count(": keep-alive") >= 3
    assert lines[-2] == "data: [DONE]"


def test_headers_of_a_waiting_request_come_with_the_first_comment() -> None:
    may_start = threading.Event()

    def script(request: GenerationRequest) -> Iterable[Event]:
        assert may_start.wait(WAIT_S)
        yield from says("late")(request)

    with (
        live(FakeEngine(script), settings=Settings(keep_alive_seconds=0.01)) as server,
        server.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        assert response.status_code == 200
        assert next(lines) == ": keep-alive"
        may_start.set()
        assert "data: [DONE]" in list(lines)


@pytest.mark.parametrize("phase", ["queueing", "prefill", "a withheld call"])
def test_comments_come_on_a_clock_whatever_is_being_done(phase: str) -> None:
    may_go_on = threading.Event()

    def script(request: GenerationRequest) -> Iterable[Event]:
        if phase != "queueing":
            yield planned(request)
        while not may_go_on.wait(0.002):
            if phase == "a withheld call":
                yield Progress(0, ())  # a token whose text may still be part of a call
        if phase == "queueing":
            yield planned(request)
        yield Progress(0, (ContentDelta("so"),), n_tokens=9)
        yield Finished(0, "stop", 10, 0)

    with (
        live(FakeEngine(script), settings=Settings(keep_alive_seconds=0.02)) as server,
        server.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as response,
    ):
        lines: list[str] = []
        for line in response.iter_lines():
            lines.append(line)
            if lines.count(": keep-alive") == 4:
                may_go_on.set()
    assert lines.count(": keep-alive") >= 4
    assert sum('"so"' in line for line in lines) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Failed("The queue is full.", kind="overloaded", retry_after_s=3), 503),
        (Failed("It broke.", kind="internal"), 500),
    ],
)
def test_e08_a_failure_before_the_first_chunk_is_an_http_error(
    failure: Failed, status: int, stream: bool
) -> None:
    with live(FakeEngine(lambda _: [failure])) as server:
        response = server.chat(stream=stream)
    assert response.status_code == status
    assert error_of(response)["message"] == failure.message
    assert response.headers.get("retry-after") == ("3" if status == 503 else None)


def test_e08_a_failure_midway_is_one_error_frame_and_one_done() -> None:
    script = replies(Progress(0, (ContentDelta("one"),)), Failed("It broke.", kind="internal"))
    with live(FakeEngine(script)) as server:
        response = server.chat(stream=True)
        whole = server.chat()
    frames = frames_of(response.text)
    assert frames[-2]["error"]["message"] == "It broke."
    assert set(frames[-2]["error"]) == {"message", "type", "param", "code"}
    assert frames.count("[DONE]") == 1
    assert frames[-1] == "[DONE]"
    assert whole.status_code == 500


def test_e08_a_fault_of_the_encoder_ends_the_stream_and_the_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = ContentDelta(None)  # type: ignore[arg-type]
    script = replies(Progress(0, (ContentDelta("one"),)), Progress(0, (broken,)), Finished(0, "stop", 2, 0))
    with live(FakeEngine(script)) as server, caplog.at_level("INFO", logger="crossturn.requests"):
        response = server.chat(stream=True)
        assert server.engine.was_cancelled.wait(WAIT_S)
        whole = server.chat()
    frames = frames_of(response.text)
    assert frames[-2]["error"]["type"] == "server_error"
    assert frames[-1] == "[DONE]"
    assert whole.status_code == 500
    assert error_of(whole)["type"] == "server_error"
    lines = [record.message for record in caplog.records if record.name == "crossturn.requests"]
    assert ["finish=internal" in line for line in lines] == [True, True]


@pytest.mark.parametrize("stream", [True, False])
def test_e04_a_client_that_leaves_cancels_its_request(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with live(FakeEngine(gate)) as server, caplog.at_level("INFO", logger="crossturn.requests"):
        with _connection(server, {**ASK, "stream": stream}) as connection:
            if stream:
                assert b"one" in _read_until(connection, b"one")
            _wait_for_a_request(server)
        assert server.engine.was_cancelled.wait(WAIT_S)
        assert server.engine.cancelled == [server.engine.requests[0].id]
        gate.opened.set()
        server.engine.script = says("next")
        assert server.chat().status_code == 200
    left, _ = [record.message for record in caplog.records if record.name == "crossturn.requests"]
    assert "finish=cancelled" in left
    if stream:
        assert "reply=7" in left  # what was written, though nobody took it


def _wait_for_a_request(server: Live) -> None:
    assert server.engine.was_asked.wait(WAIT_S)


class _Connection:
    """A bare socket that has sent one request."""

    def __init__(self, server: Live, body: dict[str, Any]) -> None:
        url = server.http.base_url
        self._socket = socket.create_connection((url.host, url.port or 80))
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + data)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _connection(server: Live, body: dict[str, Any]) -> _Connection:
    return _Connection(server, body)


def _read_until(connection: socket.socket, marker: bytes) -> bytes:
    received = b""
    while marker not in received:
        data = connection.recv(4096)
        assert data
        received += data
    return received


def test_e07_an_engine_that_stands_still_is_given_up() -> None:
    gate = Gate()
    with live(FakeEngine(gate), settings=Settings(stall_seconds=0.05)) as server:
        frames = frames_of(server.chat(stream=True).text)
        assert server.engine.was_cancelled.wait(WAIT_S)
        gate.opened.set()
    assert "not moved" in frames[-2]["error"]["message"]
    assert frames[-1] == "[DONE]"


def test_e07_an_engine_that_works_on_others_is_waited_for() -> None:
    finish = threading.Event()

    def script(request: GenerationRequest) -> Iterator[Event]:
        yield planned(request)
        # The engine's pulse goes on while this request has nothing to show.
        while not finish.wait(0.005):
            engine.n_steps += 1
        yield Finished(0, "stop", 1, 0)

    engine = FakeEngine(script)
    with (
        live(engine, settings=Settings(stall_seconds=0.05, keep_alive_seconds=0.05)) as server,
        server.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as response,
    ):
        lines: list[str] = []
        for line in response.iter_lines():
            lines.append(line)
            if lines.count(": keep-alive") == 6:
                finish.set()
    assert not any("error" in line for line in lines)
    assert engine.cancelled == []


def test_g06_the_drain_lets_requests_finish_and_takes_no_more() -> None:
    gate = Gate()
    with live(FakeEngine(gate), settings=Settings(drain_seconds=WAIT_S)) as server:
        with server.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as response:
            lines = response.iter_lines()
            assert "data: " in next(lines)
            drained = server.start_drain()
            refused = server.chat()
            gate.opened.set()
            assert "data: [DONE]" in list(lines)
        drained.result(WAIT_S)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert error_of(refused)["code"] == "shutting_down"


def test_g06_the_drain_ends_what_does_not_finish_in_time() -> None:
    gate = Gate()
    with live(FakeEngine(gate), settings=Settings(drain_seconds=0.05)) as server:
        with server.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as response:
            lines = response.iter_lines()
            assert "data: " in next(lines)
            drained = server.start_drain()
            rest = list(lines)
        drained.result(WAIT_S)
        gate.opened.set()
        assert server.engine.was_cancelled.wait(WAIT_S)
    assert any('"code":"shutting_down"' in line for line in rest)
    assert rest[-2] == "data: [DONE]"


def test_e07_a_client_that_takes_no_bytes_is_given_up() -> None:
    def script(request: GenerationRequest) -> Iterator[Event]:
        yield planned(request)
        for _ in range(200):  # more than the buffers between the two ends take
            yield Progress(0, (ContentDelta("x" * 100_000),))
        engine.was_cancelled.wait(WAIT_S)

    engine = FakeEngine(script)
    with (
        live(engine, settings=Settings(stall_seconds=0.2)) as server,
        _connection(server, {**ASK, "stream": True}) as connection,
    ):
        assert engine.was_cancelled.wait(WAIT_S)
        assert connection.recv(10)


def test_replies_carry_the_id_that_the_log_has(caplog: pytest.LogCaptureFixture) -> None:
    with live() as server, caplog.at_level("INFO", logger="crossturn.requests"):
        for stream in (True, False):
            response = server.chat(stream=stream, user="u1")
            request_id = response.headers["x-request-id"]
            assert request_id in response.text
            (line,) = [record.message for record in caplog.records if request_id in record.message]
            assert "mode=FullRefill" in line
            assert "finish=stop" in line
            assert "user='u1'" in line
            assert "reply=3" in line
