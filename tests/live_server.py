"""A real HTTP server on a free port around a fake engine, for tests that speak HTTP to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import uvicorn
from fake_engine import FakeEngine, fake_served

from server.app import create_app
from server.gateway import Gateway
from server.listen import listen, url_of
from server.served import Served
from server.settings import Settings

ASK: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}


@dataclass(frozen=True)
class Live:
    """A running server and ways to talk to it."""

    gateway: Gateway
    engine: FakeEngine
    http: httpx.Client
    openai: openai.OpenAI

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


@contextmanager
def live(
    engine: FakeEngine | None = None, served: Served | None = None, settings: Settings | None = None
) -> Iterator[Live]:
    """Serve, as long as the context lasts."""
    settings = settings or Settings()
    key = settings.api_keys[0] if settings.api_keys else "unused"
    engine = engine or FakeEngine()
    gateway = Gateway(engine, served or fake_served(), settings)
    config = uvicorn.Config(create_app(gateway), log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
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
                yield Live(gateway, engine, http, client)
        finally:
            server.should_exit = True
            thread.join()
            gateway.close()
