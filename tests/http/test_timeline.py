"""Why a turn read what it read: the timeline of a slot, and the command that tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from server.cli import main
from server.events import Divergence, PlanReport
from server.native.slots import explain
from server.settings import Settings
from tests.fakes.asking import ask, message_of
from tests.fakes.live_server import Live, error_of, live_demo

FIELDS = {"enable_thinking": False, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_demo() as running:
        yield running


def turns_of(server: Live, slot: str) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = server.http.get(f"/v1/slots/{slot}/timeline").json()["data"]
    return turns


def told(server: Live, session: str, first_system: str, second_system: str) -> str:
    """Two turns whose system prompts may differ; their slot."""
    question = {"role": "user", "content": "Hi! My name is Anna and I live in Oslo."}
    asked = {"prompt_cache_key": session, **FIELDS}
    first = ask(server, {"role": "system", "content": first_system}, question, **asked)
    again = {"role": "user", "content": "What is my name?"}
    system = {"role": "system", "content": second_system}
    ask(server, system, question, message_of(first), again, **asked)
    return str(first["crossturn"]["slot"])


def test_a_changed_date_is_named_with_both_texts(server: Live) -> None:
    slot = told(server, "dates", "You are kind. It is Monday 14:02.", "You are kind. It is Monday 14:03.")
    turn = turns_of(server, slot)[-1]
    assert turn["divergence"]["message"] == 0
    assert turn["divergence"]["role"] == "system"
    assert "14:02" in turn["divergence"]["remembered"]
    assert "14:03" in turn["divergence"]["sent"]
    assert "The client changed message 0 (system)" in turn["explanation"]
    assert "belongs at the end of the last user message" in turn["explanation"]


def test_a_turn_that_goes_on_has_nothing_to_explain(server: Live) -> None:
    slot = told(server, "goes on", "You are kind.", "You are kind.")
    turn = turns_of(server, slot)[-1]
    assert turn["divergence"] is None
    assert "The client changed" not in turn["explanation"]
    assert turn["read_again_tokens"] == 0


def test_a_timeline_is_its_owners_alone_and_goes_with_the_slot() -> None:
    with live_demo(Settings(api_keys=("one", "two"))) as server:
        slot = told(server, "private", "A secret.", "Another secret.")
        path = f"/v1/slots/{slot}/timeline"
        assert "secret" in server.http.get(path).text
        other = server.http.get(path, headers={"Authorization": "Bearer two"})
        assert error_of(other)["code"] == "slot_not_found"
        server.http.delete(f"/v1/slots/{slot}")
        assert error_of(server.http.get(path))["code"] == "slot_not_found"


def test_a_shared_system_prompt_tells_nothing_of_the_other_session(server: Live) -> None:
    long = "You answer in one short sentence. " * 20
    told(server, "theirs", f"{long}The PIN is 1234.", f"{long}The PIN is 1234.")
    slot = told(server, "mine", f"{long}The PIN is 9999.", f"{long}The PIN is 9999.")
    assert "1234" not in str(turns_of(server, slot))


def test_the_command_explains_the_slot_that_was_used_last(
    server: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    slot = told(server, "told", "It is Monday.", "It is Friday.")
    assert main(["explain", "--url", server.url]) == 0
    said = capsys.readouterr().out
    assert f"slot {slot}" in said
    assert "Monday" in said


def reported(mode: Any, *, n_shared: int, n_reused: int, parted: Divergence) -> PlanReport:
    """A plan for a prompt of 100 tokens."""
    return PlanReport(
        slot="0",
        mode=mode,
        prompt_tokens=100,
        shared_tokens=n_shared,
        reused_tokens=n_reused,
        prefilled_tokens=100 - n_reused,
        checkpoint=n_reused or None,
        reason="reason",
        divergence=parted,
    )


@pytest.mark.parametrize(
    ("role", "advice"),
    [("system", "last user message"), ("assistant", "reasoning_content"), ("user", "")],
)
def test_the_advice_fits_who_wrote_the_message(role: str, advice: str) -> None:
    parted = Divergence(message=2, role=role, is_last=False, kept="a  b", sent="c" * 100)
    report = reported("ReplayFromCheckpoint", n_shared=60, n_reused=50, parted=parted)
    said = explain(report)
    assert "“a b” was remembered" in said
    assert f"“{'c' * 60}…” was sent" in said
    assert "The 40 tokens from there on were read, and 10 tokens before it again" in said
    assert advice in said


def test_a_change_without_a_checkpoint_before_it_says_that_all_was_read() -> None:
    parted = Divergence(message=0, role="system", is_last=False, kept="a", sent="b")
    report = reported("FullRefill", n_shared=5, n_reused=0, parted=parted)
    assert "No checkpoint lies before that point, so all 100 tokens were read." in explain(report)


def test_x2_an_explanation_says_when_a_state_was_evicted_that_would_have_helped() -> None:
    parted = Divergence(message=2, role="user", is_last=False, kept="a", sent="b")
    report = reported("ReplayFromCheckpoint", n_shared=60, n_reused=10, parted=parted)
    assert "evicted" not in explain(report)
    evicted = "The state after token 60, which would have saved 50 tokens, was evicted 40 s ago to make room."
    assert evicted in explain(replace(report, eviction=evicted))
