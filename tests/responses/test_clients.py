"""What real clients sent, against the demo model: taken as it is, warm as cold, and little read twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.settings import Settings
from tests.fakes.live_server import Live, live_demo
from tests.responses.kit import PATH

CLIENTS = Path(__file__).parents[1] / "clients"
N_OVER = 32
"""Tokens that a turn may read beyond what is new."""
TURNS = [
    ("codex-1", "codex-2"),
    ("openai-agents-1", "openai-agents-2"),
    ("openai-agents-2", "openai-agents-3"),
    ("ai-sdk-1", "ai-sdk-2"),
]
SHORTER = ("openai-agents-3",)
"""Here the first turn's own thoughts are gone from the second's prompt."""
pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[Live]:
    # Nothing is read between turns, so that every count is that of the turns themselves.
    with live_demo(Settings(idle_prefill=False)) as running:
        yield running


def sent(name: str) -> dict[str, Any]:
    """A body as it was sent, but for the model's name, its length, and its sampling."""
    request = json.loads((CLIENTS / f"{name}.json").read_text())
    assert request["path"] == PATH
    return {**request["body"], "model": "demo", "max_output_tokens": 16, "temperature": 0}


def ask(server: Live, body: dict[str, Any]) -> dict[str, Any]:
    response = server.http.post(PATH, json=body, timeout=120)
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        told: dict[str, Any] = response.json()
        return told
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    last: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))["response"]
    return last


def said(told: dict[str, Any]) -> list[dict[str, Any]]:
    """What the model wrote, without the ids."""
    return [
        {name: item[name] for name in ("type", "content", "name", "arguments") if name in item}
        for item in told["output"]
    ]


def second(name: str, first: dict[str, Any]) -> dict[str, Any]:
    """The body of the second turn, its references to items made to name those of the first."""
    body = sent(name)
    if any(item.get("type") == "item_reference" for item in body["input"]):
        others = [item for item in body["input"] if item.get("type") != "item_reference"]
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        body["input"] = [*others[:-1], *references, others[-1]]
    return body


@pytest.mark.parametrize(("one", "two"), TURNS)
def test_the_second_turn_is_warm_as_cold_and_reads_what_is_new(server: Live, one: str, two: str) -> None:
    first = ask(server, sent(one))
    body = second(two, first)
    warm = ask(server, body)
    # What is new begins where the prompts part: when a user speaks again, templates drop the loop's thoughts.
    n_new = warm["crossturn"]["prompt_tokens"] - warm["crossturn"]["shared_tokens"]
    assert warm["crossturn"]["prefilled_tokens"] <= n_new + N_OVER
    assert warm["crossturn"]["shared_tokens"] >= first["usage"]["input_tokens"] - N_OVER or two in SHORTER
    references = [item["id"] for item in body["input"] if item.get("type") == "item_reference"]
    body["input"] = [
        next((made for made in first["output"] if made["id"] == item.get("id") in references), item)
        for item in body["input"]
    ]
    for slot in server.http.get("/v1/slots").json()["data"]:
        server.http.delete(f"/v1/slots/{slot['slot']}")
    cold = ask(server, body)
    assert cold["crossturn"]["reused_tokens"] == 0
    assert said(warm) == said(cold)


def test_codex_under_a_name_that_it_knows_is_answered(server: Live) -> None:
    told = ask(server, sent("codex-openai-slug-1"))
    assert told["output"]
    again = ask(server, sent("codex-openai-slug-1"))
    assert said(again) == said(told)
    assert again["crossturn"]["prefilled_tokens"] <= N_OVER
