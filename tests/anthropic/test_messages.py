"""The endpoints of Anthropic's dialect over HTTP: bodies, streams, headers, errors, models."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import anthropic
import pytest
from starlette.routing import Match
from starlette.types import Scope

from model.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.anthropic.models import OwnRoute
from server.events import Event, Failed, Finished, GenerationRequest, Progress
from server.settings import Settings
from tests.fakes.anthropic_asking import ASK, events_of, post, refusal, reply, stream
from tests.fakes.fake_engine import FakeEngine, fake_served, planned, replies, says
from tests.fakes.live_server import Live, live

WAIT_S = 20
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


def sdk(server: Live, **options: Any) -> anthropic.Anthropic:
    root = server.url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=root, max_retries=0, timeout=30, **{"api_key": "unused", **options})


def test_a_whole_reply_is_a_message(server: Live) -> None:
    response = post(server)
    body = response.json()
    assert body["content"] == [{"type": "text", "text": "Hello there"}]
    assert (body["role"], body["model"], body["stop_reason"]) == ("assistant", "demo", "end_turn")
    assert body["id"] == response.headers["request-id"] == response.headers["x-request-id"]


def test_the_plan_is_in_a_header_whole_and_streamed(server: Live) -> None:
    whole, streamed = post(server), post(server, stream=True)
    for response, told in ((whole, whole.json()), (streamed, events_of(streamed)[0])):
        assert json.loads(response.headers["x-crossturn-plan"]) == told["crossturn"]


def test_anthropics_client_reads_a_whole_and_a_streamed_reply() -> None:
    events = [
        Progress(0, (ReasoningDelta("Hm."),)),
        Progress(0, (ContentDelta("I call."),)),
        Progress(0, (ToolCallStart(0, "call_1", "f"), ToolCallArguments(0, "{"))),
        Progress(0, (ToolCallArguments(0, '"a": 1}'),)),
        Finished(0, "tool_calls", 9, 3),
    ]
    with live(FakeEngine(replies(*events))) as server, sdk(server) as client:
        whole = client.messages.create(**ASK, tools=[TOOL])
        with client.messages.stream(**ASK, tools=[TOOL]) as running:
            kinds = [event.type for event in running]
            streamed = running.get_final_message()
        beta = client.beta.messages.create(**ASK, tools=[TOOL], betas=["interleaved-thinking-2025-05-14"])
    assert whole.to_dict()["content"] == streamed.to_dict()["content"]
    assert beta.content[2].to_dict() == whole.content[2].to_dict()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.content[2].to_dict()["input"] == {"a": 1}
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert streamed.usage.to_dict() == whole.usage.to_dict()
    assert {"thinking", "text", "input_json", "signature"} <= set(kinds)
    assert (whole.model_extra or {})["crossturn"]["mode"] == "FullRefill"
    assert (streamed.model_extra or {})["crossturn"] == (whole.model_extra or {})["crossturn"]


def test_pings_keep_a_silent_stream_alive_from_before_its_first_event_on() -> None:
    begin, go_on = threading.Event(), threading.Event()

    def script(request: GenerationRequest) -> Iterable[Event]:
        assert begin.wait(WAIT_S)
        yield planned(request)
        assert go_on.wait(WAIT_S)
        yield Finished(0, "stop", 1, 0)

    with (
        live(FakeEngine(script), settings=Settings(keep_alive_seconds=0.01)) as server,
        server.http.stream("POST", "/v1/messages", json={**ASK, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        assert [next(lines), next(lines)] == ["event: ping", 'data: {"type":"ping"}']
        assert "x-crossturn-plan" not in response.headers
        begin.set()
        assert "event: message_start" in lines
        assert "event: ping" in lines
        go_on.set()
        assert "event: message_stop" in lines


def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    script = replies(Progress(0, (ContentDelta("one"),)), Failed("It broke.", kind="internal"))
    with live(FakeEngine(script)) as server:
        events = stream(server)
        with sdk(server) as client, pytest.raises(anthropic.APIStatusError, match="It broke"):
            list(client.messages.create(**ASK, stream=True))
    assert events[-1]["error"] == {"type": "api_error", "message": "It broke."}
    assert [event["type"] for event in events[-2:]] == ["content_block_delta", "error"]


@pytest.mark.parametrize(
    ("failure", "status", "told"),
    [
        (Failed("Full.", kind="overloaded", retry_after_s=3), 503, "overloaded_error"),
        (Failed("Broken.", kind="internal"), 500, "api_error"),
    ],
)
def test_what_fails_before_the_first_event_is_an_error_of_this_dialect(
    failure: Failed, status: int, told: str
) -> None:
    with live(FakeEngine(lambda _: [failure])) as server:
        for streams in (True, False):
            response = post(server, stream=streams)
            assert response.status_code == status
            assert response.json()["error"] == {"type": told, "message": failure.message}
    assert (status == 503) == ("retry-after" in response.headers)


def test_every_refusal_is_of_this_dialects_shape() -> None:
    settings = Settings(api_keys=("secret",), max_body=4096)
    version = {"anthropic-version": "2023-06-01"}
    with live(settings=settings) as server:
        told = {
            response.status_code: response.json()["error"]["type"]
            for response in (
                post(server, messages=[]),
                post(server, headers={"Authorization": "Bearer wrong"}),
                post(server, model="claude-opus-5-5"),
                server.http.get("/v1/messages"),
                post(server, system="x" * 5000),
                server.http.post("/v1/messages", content="{}", headers={"content-type": "text/plain"}),
                server.http.get("/v1/files", headers=version),
            )
        }
        assert server.http.get("/v1/files").json()["error"].keys() == {"message", "type", "param", "code"}
    assert told == {
        400: "invalid_request_error",
        401: "authentication_error",
        404: "not_found_error",
        405: "invalid_request_error",
        413: "request_too_large",
        415: "invalid_request_error",
    }


def test_a_key_may_come_as_anthropics_client_sends_it() -> None:
    with live(settings=Settings(api_keys=("secret",))) as server:
        server.http.headers.pop("authorization")
        with sdk(server, api_key="secret") as client:
            assert client.messages.create(**ASK).stop_reason == "end_turn"
        with sdk(server, api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**ASK)
        with sdk(server, api_key=None, auth_token="secret") as client:
            assert client.messages.create(**ASK).stop_reason == "end_turn"


def test_an_error_is_named_by_its_place_in_the_request(server: Live) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "unrenderable"}
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, result]}
    told = refusal(server, system="s", messages=[message])
    assert told.startswith("messages[0].content[1].content: cannot be rendered")
    wrong = {"type": "json_schema", "schema": {"type": "no type"}}
    assert refusal(server, output_config={"format": wrong}).startswith("output_config.format.schema.type: ")
    assert refusal(server, tools=[TOOL], tool_choice={"type": "tool", "name": "h"}).startswith(
        "'tool_choice.name' names 'h'"
    )
    assert refusal(server, tool_choice={"type": "any"}).startswith("'tool_choice' asks for a call")


@pytest.mark.parametrize("n_chars", [200, 3000])
def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_clients_compact_by(n_chars: int) -> None:
    with live(served=fake_served(context_length=100)) as server:
        told = refusal(server, messages=[{"role": "user", "content": "x" * n_chars}])
        n_tokens = n_chars + len("user: ")
        assert told == f"prompt is too long: {n_tokens} tokens > 100 maximum"
        counted = server.http.post(
            "/v1/messages/count_tokens",
            json={"model": "demo", "messages": [{"role": "user", "content": "x" * n_chars}]},
        )
    assert counted.json() == {"input_tokens": n_tokens}


def test_a_reply_that_the_context_cuts_says_so() -> None:
    with live(FakeEngine(says("a", reason="length")), fake_served(context_length=100)) as server:
        assert reply(server, max_tokens=128_000)["stop_reason"] == "model_context_window_exceeded"
        assert reply(server, max_tokens=5)["stop_reason"] == "max_tokens"
        assert [request.max_tokens for request in server.engine.requests] == [92, 5]


def test_tokens_are_counted_as_the_prompt_has_them(server: Live) -> None:
    asked = {"system": "You help.", "messages": [{"role": "user", "content": "Hi"}]}
    with sdk(server) as client:
        counted = client.messages.count_tokens(model="demo", **asked).input_tokens  # type: ignore[arg-type]
    usage = reply(server, **asked)["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted == usage["input_tokens"]


def test_the_last_message_of_the_assistant_is_continued(server: Live) -> None:
    prefill = {"role": "assistant", "content": [{"type": "text", "text": "The answer is"}]}
    reply(server, messages=[{"role": "user", "content": "Hi"}, prefill])
    assert server.gateway.served.chat.renders[-1]["continue_final"]  # type: ignore[attr-defined]


def test_what_a_session_may_remember_is_its_own(server: Live) -> None:
    before = len(server.engine.requests)
    for headers in ({"X-Claude-Code-Session-Id": "a"}, {"X-Session-Id": "a"}, {"X-Session-Id": "b"}, {}):
        post(server, headers=headers)
    slots = [request.slot for request in server.engine.requests[before:]]
    assert slots[0] == slots[1]
    assert len(set(slots)) == 3


def test_the_next_prompt_is_read_ahead() -> None:
    with live() as server:
        reply(server)
        assert server.engine.was_warmed.wait(WAIT_S)
        assert server.gateway.served.chat.renders[-1]["messages"] == [  # type: ignore[attr-defined]
            *ASK["messages"],
            {"role": "assistant", "content": "Hello there"},
        ]


def test_models_are_listed_as_the_client_reads_them() -> None:
    with live(served=fake_served("a", "b", "c", aliases=("a", "b", "c"), context_length=99)) as server:
        with sdk(server) as client:
            assert [model.id for model in client.models.list()] == ["a", "b", "c"]
            assert [model.id for model in client.models.list(limit=1)] == ["a", "b", "c"]  # page by page
            assert [model.id for model in client.models.list(before_id="c", limit=1).data] == ["b"]
            model = client.models.retrieve("b")
            assert (model.display_name, model.max_input_tokens) == ("b", 99)
            with pytest.raises(anthropic.NotFoundError):
                client.models.retrieve("d")
            for wrong in ({"limit": 0}, {"after_id": "d"}):
                with pytest.raises(anthropic.BadRequestError, match=next(iter(wrong))):
                    client.models.list(**wrong)  # type: ignore[arg-type]
        assert [model.id for model in server.openai.models.list()] == ["a", "b", "c"]


def test_only_requests_at_paths_that_two_dialects_have_are_looked_at_for_theirs(
    server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    as_it_is = OwnRoute.matches

    def matches(route: OwnRoute, scope: Scope) -> tuple[Match, Scope]:
        looked_at.append(scope["path"])
        return as_it_is(route, scope)

    monkeypatch.setattr(OwnRoute, "matches", matches)
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    assert server.http.get("/v1/models").status_code == 200
    assert set(looked_at) == {"/v1/models"}


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_claude_code_finds_somebody_there(method: str) -> None:
    with live(settings=Settings(api_keys=("secret",))) as server:
        server.http.headers.pop("authorization")
        assert server.http.request(method, "/api/hello").status_code == 200
