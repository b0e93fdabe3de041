"""Bodies that no client should send: refused in the dialect's shape, naming the field, and no fault of ours.

``scripts/test tests/http/test_fuzz.py --requests 10000`` sends many; a failure names the seed of its request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from model.checkpoint.hub import resolve
from model.sampling import SamplingParams
from model.text.chat import ChatFormat
from model.text.grammar.compiler import GrammarCompiler
from model.text.tokenizer import TextTokenizer
from server.client import ModelInfo
from server.http.app import create_app
from server.http.gateway import Gateway
from server.settings import Settings
from server.turn.served import Served
from tests.fakes import anthropic_types, openai_types
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.hostile import BODIES, body

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The demo model's text side, which reads and refuses; the engine behind it is a fake one."""
    tokenizer = TextTokenizer.from_dir(resolve("demo"))
    info = ModelInfo("demo", context_length=8192, device="none", budget_bytes=1 << 30, vocab_size=4096)
    grammars = GrammarCompiler(tokenizer, info.vocab_size)
    yield Served(
        names=("demo",),
        created=1_700_000_000,
        info=info,
        chat=ChatFormat(tokenizer),
        tokens=tokenizer,
        grammars=grammars,
        sampling=SamplingParams(temperature=0.0),
    )
    grammars.close()


def check(path: str, response: httpx.Response) -> str:
    """That ``response`` is one that a client can read; what it is, in a word."""
    assert response.status_code < 500, response.text[:500]
    if response.status_code < 400:
        return "taken"
    assert response.status_code in (400, 404), response.text[:500]
    told = response.json()
    assert len(response.content) < 3000, response.text[:3000]
    if path.startswith("/v1/messages"):
        anthropic_types.check_error(told)
        return "refused"
    openai_types.check_error(told)
    assert told["error"]["param"] or told["error"]["code"] == "invalid_json", told
    return "refused"


@pytest.mark.slow
def test_hostile_bodies_are_refused_in_the_dialects_shape(
    served: Served, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    n_requests = request.config.getoption("--requests")
    gateway = Gateway(FakeEngine(), served, Settings(idle_prefill=False))
    transport = httpx.ASGITransport(create_app(gateway))
    outcomes: Counter[str] = Counter()
    failures: list[str] = []

    async def send() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for seed in range(n_requests):
                r = random.Random(seed)
                path = r.choice(list(BODIES))
                content = body(r, path)
                headers = {"Content-Type": "application/json"}
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        response = await client.post(path, content=content, headers=headers)
                    outcomes[check(path, response)] += 1
                except Exception as error:
                    shown = content[:1500].decode("utf-8", "backslashreplace")
                    failures.append(f"seed {seed}, {path}: {error!r}\n{shown}")

    with caplog.at_level(logging.ERROR, "crossturn"):
        asyncio.run(send())
    gateway.close()
    assert not failures, f"{len(failures)} of {n_requests}:\n" + "\n".join(failures[:20])
    assert not caplog.records, caplog.text[:3000]
    assert outcomes["taken"] > n_requests / 20, outcomes
    assert outcomes["refused"] > n_requests / 4, outcomes
    print(json.dumps(outcomes))
