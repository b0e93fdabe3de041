"""Clients that vanish at any moment: nothing of them stays, and what comes next is right.

``scripts/test tests/reliability/test_vanishing.py -s --clients 500`` takes some minutes.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from cache.store import Store
from server.settings import Settings
from tests.fakes.live_server import Live, live_demo
from tests.fakes.process import FIXED, serving

N_AT_ONCE = 16
WAIT_S = 120
SYSTEM = "You answer in one short sentence. " * 10
ASKED = ("Hi! My name is Anna and I live in Oslo.", "What is 11 + 20?", "What is the capital of Italy?")
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TOOLS: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required"}


def chat(chance: random.Random, **fields: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": chance.choice(ASKED)}]
    return "/v1/chat/completions", {"messages": messages, **FIXED, "max_tokens": 60, **fields}


def message(chance: random.Random, **fields: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": chance.choice(ASKED)}]
    body = {"model": "demo", "max_tokens": 60, "system": SYSTEM, "messages": messages}
    return "/v1/messages", {**body, **fields}


def response(chance: random.Random, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"instructions": SYSTEM, "input": chance.choice(ASKED), "store": False, **fields}


class Vanishing:
    """One client; each of its ways returns when it has gone."""

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self._chance = random.Random(seed)
        self._session = f"vanishing-{seed % 40}"
        self._connection = socket.create_connection(address, timeout=WAIT_S)

    def go(self, way: str) -> None:
        """Vanish in that way."""
        getattr(self, way)()
        if self._chance.random() < 0.5:  # a reset, where the others end as a program does that was closed
            linger = struct.pack("ii", 1, 0)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._connection.close()

    def before_the_body(self) -> None:
        head, _ = self._request()
        self._connection.sendall(head[: self._chance.randrange(1, len(head) + 1)])

    def in_the_body(self) -> None:
        head, body = self._request()
        self._connection.sendall(head + body[: self._chance.randrange(1, len(body))])

    def before_the_first_token(self) -> None:
        self._send(stream=self._chance.random() < 0.5)
        time.sleep(self._chance.choice((0, 0, 0.01, 0.1)))

    def in_the_stream(self) -> None:
        self._send(stream=True)
        self._read_until(lambda received: received.count(b"data:") >= self._chance.randrange(2, 12))

    def in_a_tool_call(self) -> None:
        self._send(chat, stream=True, **TOOLS)
        self._read_until(lambda received: received.count(b"tool_calls") >= self._chance.randrange(1, 6))

    def during_several_replies(self) -> None:
        self._send(chat, stream=True, n=3, temperature=1)
        self._read_until(lambda received: received.count(b"data:") >= self._chance.randrange(2, 20))

    def with_the_reply_on_its_way(self) -> None:
        self._send(stream=False)
        self._connection.recv(1)

    def _send(self, dialect: Callable[..., tuple[str, dict[str, Any]]] | None = None, **fields: Any) -> None:
        self._connection.sendall(b"".join(self._request(dialect, **fields)))

    def _request(
        self, dialect: Callable[..., tuple[str, dict[str, Any]]] | None = None, **fields: Any
    ) -> tuple[bytes, bytes]:
        make = dialect or self._chance.choice((chat, message, response))
        path, body = make(self._chance, **fields)
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"X-Session-Id: {self._session}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode(), content

    def _read_until(self, is_enough: Callable[[bytes], bool]) -> None:
        received = b""
        while not is_enough(received) and (chunk := self._connection.recv(4096)):
            received += chunk


WAYS = [name for name in vars(Vanishing) if not name.startswith("_") and name != "go"]


def settle(server: Live) -> None:
    """Return when the server has nothing to do for anybody."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        gateway, loop = server.gateway, server.engine._loop
        if not (gateway._live or gateway._reading_ahead or loop.has_work):
            return
        time.sleep(0.02)
    raise AssertionError(f"something still runs: {server.engine.stats()}, {server.gateway._live}")


def held_arrays(server: Live) -> int:
    """Bytes of all arrays, once every conversation is forgotten."""
    for slot in server.http.get("/v1/slots").json()["data"]:
        server.http.delete(f"/v1/slots/{slot['slot']}")
    n_bytes, n_arrays = server.engine.call(lambda store: (store.n_bytes, mx.get_active_memory())).result()
    assert n_bytes == 0
    return int(n_arrays)


def check(store: Store) -> None:
    """That nothing is held for a request, and what is remembered is sound."""
    store.check()
    assert (store.n_pinned_bytes, len(store._running)) == (0, 0)


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a fresh process says, to each question."""
    with serving(tmp_path_factory.mktemp("cold") / "log", "--no-share-prefixes") as process:
        yield {asked: process.ask(talk_of(asked), asked)["choices"][0]["message"] for asked in ASKED}


def talk_of(asked: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]


@pytest.mark.slow
def test_of_clients_that_vanish_nothing_stays_and_what_comes_next_is_right(
    cold: dict[str, Any], request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    n_clients, done = request.config.getoption("--clients"), Counter[str]()
    with live_demo(Settings(), memory_budget=64 * 2**20) as server:
        address = (server.http.base_url.host, server.http.base_url.port)

        def vanish(seed: int) -> None:
            way = WAYS[seed % len(WAYS)]
            Vanishing(address, seed).go(way)
            done[way] += 1

        for seed in range(len(WAYS)):  # what is made once is made by now
            vanish(seed)
        settle(server)
        floor, n_files = held_arrays(server), len(list(Path("/proc/self/fd").iterdir()))
        done.clear()
        with ThreadPoolExecutor(N_AT_ONCE) as clients:
            list(clients.map(vanish, range(n_clients)))
        settle(server)
        server.engine.call(check).result()
        assert server.gateway.arrivals._n_bytes == 0
        for number in range(min(40, n_clients)):
            asked = ASKED[number % len(ASKED)]
            body = {"messages": talk_of(asked), **FIXED}
            reply = server.http.post(
                "/v1/chat/completions", json=body, headers={"X-Session-Id": f"vanishing-{number}"}
            ).json()
            assert reply["choices"][0]["message"] == cold[asked], number
            done["replies compared"] += 1
        settle(server)
        grown = held_arrays(server) - floor
        n_more_files = len(list(Path("/proc/self/fd").iterdir())) - n_files
    print(f"{dict(done)}; arrays over their floor: {grown} bytes; files over theirs: {n_more_files}")
    assert abs(grown) <= 64 * 1024
    assert n_more_files <= 2
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
