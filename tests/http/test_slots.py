"""The whole server, from HTTP to the demo model: what operators and owners of a session can see and do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from server.settings import Settings
from tests.fakes.asking import QUESTION, SYSTEM, ask, message_of
from tests.fakes.live_server import Live, error_of, live_demo
from tests.fakes.openai_types import check_model


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_demo() as running:
        yield running


def test_slots_are_listed_described_forked_and_forgotten(server: Live) -> None:
    body = ask(server, SYSTEM, QUESTION, prompt_cache_key="slots", temperature=0)
    slot = body["crossturn"]["slot"]
    listed = server.http.get("/v1/slots").json()
    assert slot in [known["slot"] for known in listed["data"]]
    assert 0 < listed["bytes"] <= listed["budget_bytes"]
    described = server.http.get(f"/v1/slots/{slot}").json()
    assert described["entries"][0]["tokens"] >= body["usage"]["prompt_tokens"]
    forked = server.http.post(f"/v1/slots/{slot}/fork", json={"session_id": "other"}).json()
    assert forked["entries"] == len(described["entries"])
    twin = ask(server, SYSTEM, QUESTION, prompt_cache_key="other", temperature=0)
    assert twin["crossturn"]["slot"] == forked["slot"]
    assert twin["crossturn"]["reused_tokens"] > 0
    assert message_of(twin) == message_of(body)
    assert server.http.delete(f"/v1/slots/{slot}").json()["deleted"] is True
    assert error_of(server.http.delete(f"/v1/slots/{slot}"))["code"] == "slot_not_found"
    for unknown in ("0123456789abcdef", "nonsense", "0" * 17):
        assert server.http.get(f"/v1/slots/{unknown}").status_code == 404
    same = server.http.post(f"/v1/slots/{forked['slot']}/fork", json={"session_id": "other"})
    assert same.status_code == 400


def test_a_list_of_slots_tells_nothing_of_other_tenants() -> None:
    with live_demo(Settings(api_keys=("one", "two"))) as running:
        lists = {}
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            if key == "one":
                body = {"messages": [QUESTION], "max_tokens": 2}
                assert running.http.post("/v1/chat/completions", json=body, headers=headers).is_success
            lists[key] = running.http.get("/v1/slots", headers=headers).json()
        assert lists["one"]["bytes"] == sum(slot["bytes"] for slot in lists["one"]["data"]) > 0
        assert (lists["two"]["data"], lists["two"]["bytes"]) == ([], 0)


def test_statistics_tell_the_load_and_the_totals(server: Live) -> None:
    server.chat()
    numbers = server.http.get("/v1/stats").json()
    assert (numbers["running"], numbers["waiting"]) == (0, 0)
    assert numbers["generated_tokens"] > 0
    assert 0 < numbers["bytes"] <= numbers["budget_bytes"]


def test_x1_another_tenants_slot_is_as_unknown_as_one_that_does_not_exist() -> None:
    with live_demo(Settings(api_keys=("one", "two"))) as running:
        owner, stranger = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"messages": [QUESTION], "max_tokens": 2, "prompt_cache_key": "chat"}
        first = running.http.post("/v1/chat/completions", json=body, headers=owner).json()
        path = f"/v1/slots/{first['crossturn']['slot']}"
        for answer in (
            running.http.get(path, headers=stranger),
            running.http.delete(path, headers=stranger),
            running.http.post(f"{path}/fork", json={"session_id": "mine"}, headers=stranger),
        ):
            assert answer.status_code == 404
            assert error_of(answer)["code"] == "slot_not_found"
        again = running.http.post("/v1/chat/completions", json=body, headers=owner).json()
        assert again["crossturn"]["reused_tokens"] > 0


def test_metrics_count_what_happened(server: Live) -> None:
    ask(server, QUESTION, max_tokens=2)
    lines = server.http.get("/metrics").text.splitlines()
    figures = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
    assert figures['crossturn_requests_total{outcome="length"}'] >= 1
    assert figures["crossturn_generated_tokens_total"] >= 2
    assert figures["crossturn_reused_tokens_total"] > 0
    assert 0 < figures["crossturn_memory_bytes"] <= figures["crossturn_memory_budget_bytes"]
    assert figures["crossturn_time_to_first_token_seconds_count"] >= 1


def test_what_follows_is_read_ahead_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.turn.reply.LEAST_AHEAD", 1)  # the header of a question is short
    key = {"prompt_cache_key": "ahead", "temperature": 0, "enable_thinking": False}
    quiet = threading.Event()
    with live_demo() as server:
        reply = message_of(ask(server, SYSTEM, QUESTION, **key))
        while server.engine.stats().n_read_ahead_tokens == 0 and not quiet.wait(0.01):
            pass
        turn = [SYSTEM, QUESTION, reply, {"role": "user", "content": "Thanks."}]
        warm = ask(server, *turn, **key)
        assert warm["crossturn"]["mode"] == "ExactAppend"
        assert 0 < warm["crossturn"]["read_ahead_tokens"] < warm["crossturn"]["reused_tokens"]
        again = ask(server, *turn, **key)  # what a client has asked for is no longer read ahead
        assert again["crossturn"]["read_ahead_tokens"] == 0


def test_models_are_listed_as_openai_lists_them(server: Live) -> None:
    listed = server.http.get("/v1/models").json()["data"]
    assert [check_model(body).id for body in listed] == ["demo"]
