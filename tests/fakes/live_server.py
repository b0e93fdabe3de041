"""A real HTTP server on a free port around a fake engine, for tests that speak HTTP to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import uvicorn

from model.checkpoint.hub import resolve
from model.sampling import SamplingParams
from model.text.chat import ChatFormat
from model.text.grammar.compiler import GrammarCompiler
from model.text.tokenizer import TextTokenizer
from server.engine.admission import LoopOptions
from server.engine.assembly import EngineOptions
from server.engine.thread import Engine
from server.http.app import create_app
from server.http.connection import connection_within
from server.http.gateway import Gateway
from server.http.intake import Keys
from server.process import listen, url_of
from server.settings import Settings
from server.turn.served import Served
from tests.fakes.checked_app import CheckedApp
from tests.fakes.fake_engine import FakeEngine, fake_served

ASK: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}


@dataclass(frozen=True)
class Live:
    """A running server and ways to talk to it; ``engine`` is a fake one unless a test says otherwise."""

    gateway: Gateway
    engine: Any
    http: httpx.Client
    openai: openai.OpenAI
    loop: asyncio.AbstractEventLoop
    url: str

    def start_drain(self) -> Future[None]:
        """Tell the server to stop taking requests; done when the last one is over."""
        drain = asyncio.run_coroutine_threadsafe(self.gateway.drain(), self.loop)
        # Two turns of the loop: the drain has begun when this returns.
        for _ in range(2):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result()
        return drain

    def chat(self, **fields: Any) -> httpx.Response:
        """Ask with ``fields`` over a minimal request; a field set to ``...`` is left out."""
        body = {name: value for name, value in {**ASK, **fields}.items() if value is not ...}
        return self.http.post("/v1/chat/completions", json=body)

    def refusal(self, **fields: Any) -> dict[str, Any]:
        """The error of a request that must be refused with 400, its shape checked."""
        response = self.chat(**fields)
        assert response.status_code == 400, response.text
        return error_of(response)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error in ``response``; it must have OpenAI's shape and nothing else."""
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


class _Server(uvicorn.Server):
    """Tells when it is up, and on which loop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()
        self.loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.is_up.set()


@contextmanager
def live_demo(
    settings: Settings | None = None, *, memory_budget: int = 2**30, loop: LoopOptions | None = None
) -> Iterator[Live]:
    """Serve the demo model with the real engine, over the cache directory of ``settings``."""
    path = resolve("demo")
    tokenizer = TextTokenizer.from_dir(path)
    cache_dir = None if settings is None else settings.cache_dir
    held = Settings(memory_budget=memory_budget, cache_dir=cache_dir)
    options = EngineOptions(path, held, loop=loop or LoopOptions())
    engine = Engine(options, tokenizer)
    info = engine.start()
    grammars = GrammarCompiler(tokenizer, info.vocab_size)
    served = Served(
        names=("demo",),
        created=1_700_000_000,
        info=info,
        chat=ChatFormat(tokenizer),
        tokens=tokenizer,
        grammars=grammars,
        sampling=SamplingParams(temperature=0.0),
    )
    try:
        with live(engine, served, settings) as running:
            yield running
    finally:
        grammars.close()
        engine.stop(drain_s=0)


@contextmanager
def live(
    engine: Any = None, served: Served | None = None, settings: Settings | None = None
) -> Iterator[Live]:
    """Serve, as long as the context lasts. All that was sent must be as OpenAI sends it."""
    settings = settings or Settings()
    key = settings.api_keys[0] if settings.api_keys else "unused"
    engine = engine or FakeEngine()
    gateway = Gateway(engine, served or fake_served(), settings)
    app = CheckedApp(create_app(gateway, Keys.of(settings)))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=connection_within(settings.receive_seconds),
    )
    server = _Server(config)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        base_url = url_of(listener)
        headers = {"Authorization": f"Bearer {key}"} if settings.api_keys else {}
        try:
            with (
                httpx.Client(base_url=base_url.removesuffix("/v1"), headers=headers, timeout=30) as http,
                openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=30) as client,
            ):
                assert server.is_up.wait(10)
                yield Live(gateway, engine, http, client, server.loop, base_url)
        finally:
            server.should_exit = True
            thread.join()
            gateway.close()
    assert not app.violations, "\n".join(app.violations)
