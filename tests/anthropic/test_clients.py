"""What Claude Code has sent, over HTTP with the demo model: taken, and never read twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from server.settings import Settings
from tests.fakes.anthropic_asking import captured, post
from tests.fakes.live_server import Live, live_demo
from tests.fakes.mutations import shortened

pytestmark = pytest.mark.slow

N_REPLY = 12
SHORT = 200
"""Characters of a text that are enough where its length does not matter."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Live, Live]]:
    """One that remembers, and one that is made to forget."""
    with live_demo() as warm, live_demo(Settings(idle_prefill=False)) as cold:
        yield warm, cold


def forget(server: Live) -> None:
    for slot in server.http.get("/v1/slots").json()["data"]:
        server.http.delete(f"/v1/slots/{slot['slot']}")


def ask(server: Live, name: str, *, n_chars: int = 100_000, **changes: Any) -> dict[str, Any]:
    """The reply to what a client has sent, its texts cut to ``n_chars``."""
    body, headers = captured(name, **{"model": "demo", "max_tokens": N_REPLY, "stream": False, **changes})
    response = post(server, headers=headers, **shortened(body, n_chars))
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.mark.parametrize(("mode", "n_chars"), [("print", 100_000), ("interactive", SHORT)])
def test_claude_codes_second_turn_reads_only_what_is_new_and_answers_as_a_cold_server(
    servers: tuple[Live, Live], mode: str, n_chars: int
) -> None:
    warm, cold = servers
    ask(warm, f"claude-code-{mode}-1", n_chars=n_chars)
    again = ask(warm, f"claude-code-{mode}-2", n_chars=n_chars)
    forget(cold)
    fresh = ask(cold, f"claude-code-{mode}-2", n_chars=n_chars)
    assert fresh["crossturn"]["mode"] == "FullRefill"
    assert again["content"] == fresh["content"]
    plan = again["crossturn"]
    assert plan["prefilled_tokens"] <= plan["prompt_tokens"] - plan["shared_tokens"] + 32
    assert plan["prefilled_tokens"] < 100
    usage = again["usage"]
    assert usage["cache_read_input_tokens"] == plan["reused_tokens"]
    assert usage["cache_creation_input_tokens"] > 0
    assert sum(usage[name] for name in usage if name.endswith("input_tokens")) == plan["prompt_tokens"]


def test_a_title_asked_for_beside_the_first_turn_takes_nothing_from_it(servers: tuple[Live, Live]) -> None:
    warm, cold = servers
    forget(warm)
    with ThreadPoolExecutor(2) as together:
        title = together.submit(ask, warm, "claude-code-title", max_tokens=60)
        first = together.submit(ask, warm, "claude-code-interactive-1", n_chars=SHORT)
    assert first.result()["crossturn"]["slot"] == title.result()["crossturn"]["slot"]
    assert title.result()["content"][0]["text"].startswith("{")
    again = ask(warm, "claude-code-interactive-2", n_chars=SHORT)
    assert again["crossturn"]["prefilled_tokens"] < 100
    forget(cold)
    assert again["content"] == ask(cold, "claude-code-interactive-2", n_chars=SHORT)["content"]
    second_title = ask(warm, "claude-code-title", max_tokens=60)
    assert second_title["crossturn"]["prefilled_tokens"] < 32
    assert second_title["content"] == title.result()["content"]


def test_a_cache_mark_that_rolls_on_changes_nothing(servers: tuple[Live, Live]) -> None:
    warm, _ = servers
    forget(warm)
    body, _ = captured("claude-code-title")
    first = ask(warm, "claude-code-title")
    for block in (*body["system"], *body["messages"][0]["content"]):
        block["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    body["messages"][0]["content"] = "".join(block["text"] for block in body["messages"][0]["content"])
    body["system"][0]["text"] += " cch=12ab3;"
    again = ask(warm, "claude-code-title", messages=body["messages"], system=body["system"])
    assert again["crossturn"]["prefilled_tokens"] < 16
    assert again["content"] == first["content"]


def test_a_hidden_thought_comes_back_in_the_next_prompt(servers: tuple[Live, Live]) -> None:
    """As Claude Code asks: thoughts omitted, blocks sent back as they came."""
    warm, cold = servers
    fields: dict[str, Any] = {
        "thinking": {"type": "adaptive", "display": "omitted"},
        "max_tokens": 300,
        "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
        "tool_choice": {"type": "tool", "name": "f"},
    }
    asked: list[dict[str, Any]] = [{"role": "user", "content": "What is 12 plus 5?"}]
    headers = {"x-session-id": "hidden"}
    first = post(warm, headers=headers, messages=asked, **fields).json()
    thinking, call = first["content"]
    assert thinking["thinking"] == ""
    asked += [
        {"role": "assistant", "content": first["content"]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "17"}],
        },
    ]
    fields["tool_choice"] = {"type": "auto"}
    again = post(warm, headers=headers, messages=asked, **fields).json()
    assert again["crossturn"]["prefilled_tokens"] < 60
    assert again["crossturn"]["reused_tokens"] >= first["crossturn"]["prompt_tokens"]
    forget(cold)
    assert again["content"] == post(cold, messages=asked, **fields).json()["content"]
