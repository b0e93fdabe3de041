"""A fault planted at every step of a request, over HTTP, with a cache directory: that request fails cleanly,
or does without; the next one is right, and nothing else is forgotten.

``tests/engine/test_faults.py`` does the same inside the engine, step by step, with panics and without memory.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import server.engine.assembly
import server.openai.decoder
from cache.disk import blob
from cache.disk.tier import DiskTier
from cache.entry import RunningEntry
from cache.store import Store
from model.batch import DecodeBatch
from model.checkpoint.hub import resolve
from model.forward import Forward
from model.text.chat import ChatFormat
from model.text.grammar.compiler import GrammarCompiler
from model.text.grammar.masks import Grammar, GrammarTable
from model.text.reply import ReplyReader
from model.text.tokenizer import TextTokenizer
from server.engine.admission import Admission
from server.engine.assembly import EngineOptions
from server.engine.lookup import Lookup
from server.engine.thread import Engine
from server.http.gateway import Gateway
from server.http.stream import Frame
from server.openai.encoder import ChatEncoder
from server.settings import Settings
from server.telemetry.record import Metrics, Timeline
from server.telemetry.tracing import Tracing
from tests.fakes.live_server import Live, live_demo

SYSTEM = {"role": "system", "content": "You are kind, and you answer in one short sentence. " * 12}
TALK = [SYSTEM, {"role": "user", "content": "What is 11 + 20? Say it as 11 + 20 = and the sum."}]
FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "sum",
        "schema": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
    },
}
ASK: dict[str, Any] = {"temperature": 0, "enable_thinking": False, "max_tokens": 16}
SECRET = "planted: nobody may read this"

FAILING: dict[str, tuple[Any, str]] = {
    "parse the body": (server.openai.decoder, "parse"),
    "render": (ChatFormat, "render"),
    "tokenise": (TextTokenizer, "encode_text"),
    "compile": (GrammarCompiler, "json"),
    "admit": (Admission, "add"),
    "recall": (Store, "recall"),
    "plan": (Store, "plan"),
    "take": (Store, "take"),
    "prefill": (Forward, "prefill"),
    "capture": (RunningEntry, "capture"),
    "grammar": (GrammarTable, "start"),
    "mask": (Grammar, "mask"),
    "prepare drafts": (Lookup, "__init__"),
    "decode": (DecodeBatch, "step"),
    "parse the reply": (ReplyReader, "push_all"),
    "finish": (ReplyReader, "finish"),
    "answer": (Gateway, "answer"),
    "encode": (ChatEncoder, "frames"),
}
"""Where the request itself cannot go on."""

STREAMED = {"send": (Frame, "encode")}
WHOLE = {"send the body": (ChatEncoder, "body")}

HARMLESS: dict[str, tuple[Any, str]] = {
    "note a token for drafts": (Lookup, "add"),
    "save": (Store, "save"),
    "foresee the next prompt": (ChatFormat, "known_next"),
    "want on the disk": (DiskTier, "want"),
    "pack": (blob, "pack"),
    "write": (blob, "write"),
    "sync": (os, "fsync"),
    "rename": (os, "replace"),
    "count": (Metrics, "observe"),
    "note in the timeline": (Timeline, "note"),
    "trace": (Tracing, "observe"),
}
"""Where it can: the reply is there, and right."""


@pytest.fixture(scope="module")
def live_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_demo(Settings(cache_dir=tmp_path_factory.mktemp("cache"))) as server:
        server.gateway.tracing = Tracing(TracerProvider())
        yield server


@pytest.fixture(scope="module")
def right() -> dict[str, str]:
    """What a server without any past says, as text and as JSON."""
    with live_demo() as server:
        return {name: text_of(ask(server, f"cold {name}", **more)) for name, more in REPLIES.items()}


REPLIES: dict[str, dict[str, Any]] = {"text": {}, "json": {"response_format": FORM}}


def ask(server: Live, session: str, talk: list[dict[str, Any]] = TALK, **fields: Any) -> dict[str, Any]:
    answer = send(server, session, talk, **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def send(server: Live, session: str, talk: list[dict[str, Any]] = TALK, **fields: Any) -> Any:
    body = {"messages": talk, **ASK, **fields}
    return server.http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": session})


def text_of(body: dict[str, Any]) -> str:
    text: str = body["choices"][0]["message"]["content"]
    return text


class Planted:
    """The next call of a function, on whatever thread, raises."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, fault: BaseException) -> None:
        self.n_raised = 0
        original: Callable[..., Any] = getattr(owner, name)

        def wrapper(*args: Any, **options: Any) -> Any:
            if self.n_raised == 0:
                self.n_raised += 1
                raise fault
            return original(*args, **options)

        patch.setattr(owner, name, wrapper)


def is_told_cleanly(answer: Any, *, stream: bool) -> None:
    """That the client is told of an error of the server's, once, and nothing of what it was."""
    assert SECRET not in answer.text
    if stream and answer.status_code == 200:
        frames = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: ")]
        assert frames.pop() == "[DONE]"
        told = [frame for frame in map(json.loads, frames) if "error" in frame]
        assert len(told) == 1
        assert told[0] == json.loads(frames[-1])
        return
    assert answer.status_code == 500
    assert set(answer.json()) == {"error"}


def settle(server: Live) -> None:
    """Wait for what is done behind replies."""
    while server.gateway._reading_ahead or server.engine._loop.has_work:  # type: ignore[union-attr]
        server.http.get("/health")
    server.engine.call(lambda store: store.disk.flush()).result()  # type: ignore[attr-defined]


def nothing_stays(server: Live) -> None:
    """That nothing runs or waits, and all that is remembered is sound."""
    settle(server)
    stats = server.engine.stats()
    assert (stats.n_running, stats.n_waiting) == (0, 0)
    assert not server.gateway._live
    assert server.engine.call(lambda store: (store.check(), len(store._running))[1]).result() == 0


CASES = [
    *((step, where, stream, True) for step, where in FAILING.items() for stream in (False, True)),
    *((step, where, True, True) for step, where in STREAMED.items()),
    *((step, where, False, True) for step, where in WHOLE.items()),
    *((step, where, stream, False) for step, where in HARMLESS.items() for stream in (False, True)),
]


@pytest.mark.parametrize(
    ("step", "where", "stream", "fails"), CASES, ids=[f"{step}-{stream}" for step, _, stream, _ in CASES]
)
def test_e1_a_fault_at_any_step_costs_one_request_at_most(
    live_one: Live,
    right: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    where: tuple[Any, str],
    stream: bool,
    fails: bool,
) -> None:
    kept_session, bad_session = f"kept {step} {stream}", f"bad {step} {stream}"
    kept = ask(live_one, kept_session)
    settle(live_one)
    form = REPLIES["json" if step in ("compile", "grammar", "mask") else "text"]
    own = [SYSTEM, {"role": "user", "content": f"Case {step} {stream}. {TALK[1]['content']}"}]
    with monkeypatch.context() as patch:
        planted = Planted(patch, *where, RuntimeError(SECRET))
        answer = send(live_one, bad_session, own, stream=stream, **form)
        settle(live_one)
    assert planted.n_raised == 1
    if fails:
        is_told_cleanly(answer, stream=stream)
    else:
        assert answer.status_code == 200
        assert "error" not in answer.text
    nothing_stays(live_one)
    for name, more in REPLIES.items():
        assert text_of(ask(live_one, bad_session, **more)) == right[name]
    talk = [*TALK, kept["choices"][0]["message"], {"role": "user", "content": "Hello!"}]
    again = ask(live_one, kept_session, talk)
    header = 8  # of the reply, which the next prompt may write differently
    assert again["crossturn"]["reused_tokens"] >= kept["usage"]["prompt_tokens"] - header


def test_e1_a_fault_in_reading_the_disk_costs_the_time_to_read_the_prompt_again(
    right: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(cache_dir=tmp_path)
    with live_demo(settings) as server:
        ask(server, "kept")
        settle(server)
    with live_demo(settings) as server:
        with monkeypatch.context() as patch:
            planted = Planted(patch, blob, "read", OSError(5, "Input/output error"))
            first = ask(server, "kept")
        assert planted.n_raised == 1
        assert (text_of(first), first["crossturn"]["reused_tokens"]) == (right["text"], 0)
        nothing_stays(server)
    with live_demo(settings) as server:  # nothing was deleted for it
        again = ask(server, "kept")
        assert text_of(again) == right["text"]
        assert again["crossturn"]["reused_tokens"] > 0


def test_e1_a_fault_in_loading_is_told_and_the_next_start_is_whole(
    right: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve("demo")
    with monkeypatch.context() as patch:
        planted = Planted(patch, server.engine.assembly, "load", RuntimeError(SECRET))
        engine = Engine(EngineOptions(path, Settings()), TextTokenizer.from_dir(path))
        with pytest.raises(RuntimeError, match="planted"):
            engine.start()
        assert planted.n_raised == 1
        assert not engine.stats().is_alive
    with live_demo() as running:
        assert text_of(ask(running, "after")) == right["text"]


def test_e1_what_is_planted_is_logged_with_its_request(
    live_one: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        Planted(patch, *FAILING["prefill"], RuntimeError(SECRET))
        assert send(live_one, "logged").status_code == 500
    assert any(record.exc_info and SECRET in str(record.exc_info[1]) for record in caplog.records)
