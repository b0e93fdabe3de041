"""``--cache-dir``: a server that is killed goes on where it was."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.test_process import ended, started

SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 40}


def ask(url: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 24}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"X-Session-Id": "kept"}, timeout=60)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def wait_for_a_conversation(folder: Path) -> None:
    """Return once a conversation is on the disk."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if any(not path.name.endswith(".part") for path in (folder / "conversations").iterdir()):
            return
    raise AssertionError("nothing was written")


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_conversation_survives_the_end_of_the_server(tmp_path: Path, end: signal.Signals) -> None:
    options = ("--port", "0", "--cache-dir", str(tmp_path), "--no-idle-prefill")
    messages = [SYSTEM, {"role": "user", "content": "What is 3 plus 4?"}]
    with started(*options) as (process, url):
        first = ask(url, messages)
        wait_for_a_conversation(tmp_path)
        process.send_signal(end)
        ended(process)
    text = first["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And plus 5?"}]
    with started(*options) as (_, url):
        warm = ask(url, messages)
    with started("--port", "0") as (_, url):
        cold = ask(url, messages)
    assert warm["crossturn"]["reused_tokens"] > first["usage"]["prompt_tokens"] - 5
    assert cold["crossturn"]["reused_tokens"] == 0
    assert warm["choices"] == cold["choices"]


@pytest.mark.slow
def test_a_session_that_moves_to_another_server_over_the_folder_is_read_back(tmp_path: Path) -> None:
    options = ("--port", "0", "--cache-dir", str(tmp_path))
    messages = [{"role": "user", "content": "What is 2 plus 2? " * 12}]
    with started(*options) as (_, one), started(*options) as (_, other):
        first = ask(one, messages)
        wait_for_a_conversation(tmp_path)
        text = first["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And plus 5?"}]
        moved = ask(other, messages)
    assert moved["crossturn"]["reused_tokens"] >= first["usage"]["prompt_tokens"] - 5
    assert (tmp_path / "peer-1" / "conversations").is_dir()
