"""Responses are found again by those they belong to: gone on from, listed, deleted, and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.events import Finished, Progress
from server.settings import Settings
from tests.fakes.fake_engine import FakeEngine, fake_served, replies
from tests.fakes.live_server import Live, error_of, live
from tests.responses.kit import PATH, post, refusal, respond, stream

TOOLS = [{"type": "function", "name": "f"}]


def engine() -> FakeEngine:
    """Thinks, says something, and calls a tool."""
    deltas = (
        ReasoningDelta("Hm."),
        ContentDelta("Well."),
        ToolCallStart(0, "call_0", "f"),
        ToolCallArguments(0, "{}"),
    )
    return FakeEngine(replies(Progress(0, deltas), Finished(0, "tool_calls", 9, 2)))


@pytest.fixture
def server() -> Iterator[Live]:
    # What is read ahead is rendered too.
    with live(engine(), fake_served("demo"), Settings(idle_prefill=False)) as running:
        yield running


def rendered(server: Live) -> list[dict[str, Any]]:
    """The messages of the last prompt."""
    return [dict(message) for message in server.gateway.served.chat.renders[-1]["messages"]]  # type: ignore[attr-defined]


SAID = {
    "role": "assistant",
    "content": "Well.",
    "reasoning_content": "Hm.",
    "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"type": "function_call_output", "call_id": "call_0", "output": "42"}
TOLD = {"role": "tool", "tool_call_id": "call_0", "content": "42"}


@pytest.mark.parametrize("ask", [respond, lambda server, body: stream(server, body)[-1]["response"]])
def test_a_response_is_gone_on_from_without_its_instructions(server: Live, ask: Any) -> None:
    first = ask(server, {"input": "Hi", "instructions": "Be brief.", "tools": TOOLS})
    second = ask(server, {"input": [RESULT], "previous_response_id": first["id"], "tools": TOOLS})
    assert rendered(server) == [{"role": "user", "content": "Hi"}, SAID, TOLD]
    assert second["previous_response_id"] == first["id"]
    third = {"input": [RESULT], "previous_response_id": second["id"], "instructions": "Be long."}
    ask(server, {**third, "tools": TOOLS})
    assert rendered(server) == [
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": "Hi"},
        SAID,
        TOLD,
        SAID,
        TOLD,
    ]


def test_two_that_go_on_from_one_response_are_a_fork(server: Live) -> None:
    first = respond(server, {"input": "Hi", "tools": TOOLS})
    for output in ("1", "2"):
        going_on = {"input": [{**RESULT, "output": output}], "previous_response_id": first["id"]}
        respond(server, {**going_on, "tools": TOOLS})
        assert rendered(server) == [{"role": "user", "content": "Hi"}, SAID, {**TOLD, "content": output}]


def test_items_are_found_by_their_ids_which_no_two_share(server: Live) -> None:
    first, other = (respond(server, {"input": "Hi", "tools": TOOLS}) for _ in range(2))
    ids = [item["id"] for told in (first, other) for item in told["output"]]
    assert len(set(ids)) == 6
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    respond(server, {"input": [{"role": "user", "content": "Hi"}, *references, RESULT], "tools": TOOLS})
    assert rendered(server) == [{"role": "user", "content": "Hi"}, SAID, TOLD]
    bare = [{"id": item["id"]} for item in first["output"]]
    respond(server, {"input": [{"role": "user", "content": "Hi"}, *bare, RESULT], "tools": TOOLS})
    assert rendered(server) == [{"role": "user", "content": "Hi"}, SAID, TOLD]


def test_a_response_that_is_not_to_be_stored_leaves_nothing_behind(server: Live) -> None:
    told = respond(server, {"input": "Hi", "store": False, "tools": TOOLS})
    assert server.http.get(f"{PATH}/{told['id']}").status_code == 404
    error = refusal(server, {"input": [RESULT], "previous_response_id": told["id"]}, 404)
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
    error = refusal(server, {"input": [{"type": "item_reference", "id": told["output"][0]["id"]}]}, 404)
    assert (error["param"], error["code"]) == ("input[0].id", "item_not_found")


def test_a_response_is_given_again_and_deleted(server: Live) -> None:
    told = respond(server, {"input": "Hi", "metadata": {"a": "b"}, "tools": TOOLS})
    where = f"{PATH}/{told['id']}"
    assert server.http.get(where).json() == told
    assert error_of(server.http.get(where, params={"stream": True}))["param"] == "stream"
    assert server.http.delete(where).json() == {"id": told["id"], "object": "response", "deleted": True}
    for response in (
        server.http.get(where),
        server.http.delete(where),
        server.http.get(f"{where}/input_items"),
    ):
        assert response.status_code == 404
        assert error_of(response)["code"] == "response_not_found"


def test_what_went_on_from_a_deleted_response_goes_on(server: Live) -> None:
    first = respond(server, {"input": "Hi", "tools": TOOLS})
    going_on = {"input": [RESULT], "previous_response_id": first["id"], "tools": TOOLS}
    second = respond(server, going_on)
    server.http.delete(f"{PATH}/{first['id']}")
    assert refusal(server, going_on, 404)["code"] == "previous_response_not_found"
    respond(server, {**going_on, "previous_response_id": second["id"]})
    assert rendered(server) == [{"role": "user", "content": "Hi"}, SAID, TOLD, SAID, TOLD]


def test_all_that_a_response_was_made_from_is_listed_a_page_at_a_time(server: Live) -> None:
    first = respond(server, {"input": "Hi", "tools": TOOLS})
    second = respond(
        server, {"input": [RESULT], "previous_response_id": first["id"], "tools": TOOLS, "store": True}
    )
    where = f"{PATH}/{second['id']}/input_items"
    whole = server.http.get(where, params={"order": "asc"}).json()
    types = [item["type"] for item in whole["data"]]
    assert types == ["message", "reasoning", "message", "function_call", "function_call_output"]
    assert whole["data"][0]["content"] == [{"type": "input_text", "text": "Hi"}]
    assert whole["data"][1:4] == first["output"]
    assert not whole["has_more"]
    pages, after = [], {}
    while not pages or pages[-1]["has_more"]:
        pages.append(server.http.get(where, params={"limit": 2, **after}).json())
        after = {"after": pages[-1]["last_id"]}
    assert [item for page in pages for item in page["data"]] == whole["data"][::-1]
    assert pages[0]["first_id"] == whole["last_id"]
    assert error_of(server.http.get(where, params={"after": "msg_x"}))["code"] == "item_not_found"
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}):
        response = server.http.get(where, params=wrong)
        assert response.status_code == 400
        assert error_of(response)["param"] == next(iter(wrong))


def test_items_that_lack_what_they_may_lack_are_listed_whole(server: Live) -> None:
    call = {"type": "tool_search_call", "call_id": "d", "arguments": {}}
    found = {"type": "tool_search_output", "call_id": "d", "tools": [{"type": "function", "name": "h"}]}
    output = {"type": "custom_tool_call_output", "output": "x"}
    more = {"type": "additional_tools", "role": "developer", "tools": TOOLS}
    user = {"id": None, "role": "user", "content": ""}
    items = [user, more, call, found, output, user]
    told = respond(server, {"input": items})
    listed = server.http.get(f"{PATH}/{told['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert [item["type"] for item in listed] == [item.get("type", "message") for item in items]
    assert listed[3]["execution"] == "client"


def test_the_length_of_a_prompt_is_told_without_answering_it(server: Live) -> None:
    first = respond(server, {"input": "Hi", "tools": TOOLS})
    n_asked = len(server.engine.requests)
    body = {"model": "demo", "input": [RESULT], "previous_response_id": first["id"], "tools": TOOLS}
    told = server.http.post(f"{PATH}/input_tokens", json=body).json()
    assert told["object"] == "response.input_tokens"
    assert len(server.engine.requests) == n_asked
    assert told["input_tokens"] == respond(server, body)["usage"]["input_tokens"]


def test_nobody_finds_what_belongs_to_another_key() -> None:
    settings = Settings(api_keys=("one", "two"))
    with live(engine(), fake_served("demo"), settings) as server:
        told = respond(server, {"input": "Hi", "tools": TOOLS, "include": ["reasoning.encrypted_content"]})
        other = {"Authorization": "Bearer two"}
        where = f"{PATH}/{told['id']}"
        for response in (
            server.http.get(where, headers=other),
            server.http.delete(where, headers=other),
            server.http.get(f"{where}/input_items", headers=other),
            post(server, {"input": [RESULT], "previous_response_id": told["id"]}, **other),
            post(server, {"input": [{"type": "item_reference", "id": told["output"][0]["id"]}]}, **other),
        ):
            assert response.status_code == 404
        blob = {**told["output"][0], "content": None}
        assert post(server, {"input": [blob]}, **other).status_code == 400
        assert post(server, {"input": [blob]}).status_code == 200
        assert server.http.get(where, headers={"Authorization": "x"}).status_code == 401
        assert server.http.get(where).json() == told


def test_a_sealed_thought_is_asked_for_and_read_back(server: Live) -> None:
    asked = {"input": "Hi", "store": False, "include": ["reasoning.encrypted_content"], "tools": TOOLS}
    thought, message, call = stream(server, asked)[-1]["response"]["output"]
    assert thought["encrypted_content"]
    kept = {"type": "reasoning", "encrypted_content": thought["encrypted_content"], "summary": []}
    respond(
        server, {"input": [{"role": "user", "content": "Hi"}, kept, message, call, RESULT], "tools": TOOLS}
    )
    assert rendered(server) == [{"role": "user", "content": "Hi"}, SAID, TOLD]


def test_a_restart_finds_responses_and_opens_thoughts(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, idle_prefill=False)
    asked = {"input": "Hi", "include": ["reasoning.encrypted_content"], "tools": TOOLS}
    with live(engine(), fake_served("demo"), settings) as server:
        told = respond(server, asked)
    with live(engine(), fake_served("demo"), settings) as server:
        assert server.http.get(f"{PATH}/{told['id']}").json() == told
        respond(server, {"input": [RESULT], "previous_response_id": told["id"], "tools": TOOLS})
        assert rendered(server) == [{"role": "user", "content": "Hi"}, SAID, TOLD]
        blob = {**told["output"][0], "content": None}
        respond(server, {"input": [{"role": "user", "content": "Hi"}, blob, *told["output"][1:], RESULT]})
        assert rendered(server) == [{"role": "user", "content": "Hi"}, SAID, TOLD]


def test_what_goes_on_from_a_response_stays_in_its_session(server: Live) -> None:
    first = respond(server, {"input": "Hi", "prompt_cache_key": "k", "tools": TOOLS})
    second = respond(server, {"input": [RESULT], "previous_response_id": first["id"], "tools": TOOLS})
    respond(server, {"input": [RESULT], "previous_response_id": second["id"], "tools": TOOLS})
    respond(server, {"input": "Hi", "tools": TOOLS})
    slots = [request.slot for request in server.engine.requests]
    assert len(set(slots[:3])) == 1
    assert slots[3] != slots[0]


def test_what_is_evicted_is_not_found() -> None:
    with live(engine(), fake_served("demo"), Settings(response_store=4096)) as server:
        told = [respond(server, {"input": f"Hi {n}", "tools": TOOLS}) for n in range(8)]
        statuses = [server.http.get(f"{PATH}/{one['id']}").status_code for one in told]
        assert statuses[0] == 404
        assert statuses[-1] == 200
        going_on = {"input": [RESULT], "previous_response_id": told[0]["id"]}
        assert refusal(server, going_on, 404)["code"] == "previous_response_not_found"
