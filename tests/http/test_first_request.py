"""The first request finds everything made: nothing is imported, no schema built and no pattern compiled for
it, and small writes of a reply leave at once."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pydantic
import pytest

from server.http.app import create_app, warm_up
from server.http.gateway import Gateway
from server.process import listen
from server.settings import Settings
from tests.fakes.fake_engine import FakeEngine, fake_served, says
from tests.fakes.live_server import ASK

# Tells of every pattern that is compiled as `-X importtime` tells of imports.
PROGRAM = """
import re, sys
compile = re._compiler.compile
def noted(pattern, flags=0):
    print("import time: 0 | 0 | pattern", repr(pattern)[:60], file=sys.stderr, flush=True)
    return compile(pattern, flags)
re._compiler.compile = noted
from server.cli import main
sys.exit(main(sys.argv[1:]))
"""
COMMAND = (
    sys.executable,
    "-X",
    "importtime",
    "-c",
    PROGRAM,
    "serve",
    "--port",
    "0",
    "--log-level",
    "error",
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        },
    }
]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "x",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


def test_the_schemas_of_routes_are_built_before_the_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[object] = []
    right = pydantic.TypeAdapter.__init__

    def noted(self: Any, type_: Any, **options: Any) -> None:
        built.append(type_)
        right(self, type_, **options)

    monkeypatch.setattr(pydantic.TypeAdapter, "__init__", noted)

    async def ask() -> None:
        app = create_app(Gateway(FakeEngine(says("Hello")), fake_served(), Settings()))
        await warm_up(app)
        assert len(built) > 20
        built.clear()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path, body in (
                ("/v1/chat/completions", ASK),
                ("/v1/responses", {"model": "demo", "input": "Hi"}),
                ("/v1/messages", {**ASK, "max_tokens": 4}),
            ):
                assert (await client.post(path, json=body)).status_code == 200
            assert (await client.get("/health")).status_code == 200

    asyncio.run(ask())
    assert built == []


def test_small_writes_of_a_connection_leave_at_once() -> None:
    async def accepted(listener: socket.socket) -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(look, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await found

    with closing(listen("127.0.0.1", 0)) as listener:
        assert asyncio.run(accepted(listener)) == 1


@pytest.mark.slow
def test_nothing_is_imported_or_compiled_between_ready_and_the_first_requests(tmp_path: Path) -> None:
    log = tmp_path / "imports"
    with (
        log.open("w") as stderr,
        subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().split()[4]
        before = log.read_text().count("import time:")
        try:
            for fields in (
                {},
                {"stream": True},
                {"tools": TOOLS},
                {"response_format": SCHEMA},
                {"logprobs": True},
            ):
                body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
                assert httpx.post(f"{url}/chat/completions", json=body, timeout=60).status_code == 200
        finally:
            process.terminate()
    late = [
        line.rpartition("|")[2].strip() for line in log.read_text().splitlines() if "import time:" in line
    ]
    assert before > 500
    assert late[before:] == []
