"""Twenty ways in which a tenant tries to read, change or time what is another's, before and after a restart.

The owner leads a conversation in the session ``chat``, and keeps a response. The stranger has a key of its
own, and knows all that the owner was told: ids of the slot and the response, sealed thoughts, names of files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from cache.disk import blob
from server.settings import Settings
from tests.fakes.live_server import Live, live_demo

OWNER, STRANGER = "owner-key", "stranger-key"
PIN = "7351"
SYSTEM = "You are kind, and you answer in one short sentence. " * 10
SAID = f"My PIN is {PIN}. What is 11 + 20? "
TALK = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": SAID}]
FIXED = {"temperature": 0, "enable_thinking": False, "max_tokens": 12}
THOUGHT = {"effort": "low"}


@dataclass
class World:
    """Two tenants of one server, and what the owner was told."""

    server: Live
    reply: dict[str, Any] = field(default_factory=dict)
    response: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    parcel: bytes = b""

    def call(self, key: str, verb: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}", **options.pop("headers", {})}
        return self.server.http.request(verb, path, headers=headers, **options)

    def chat(self, key: str, talk: list[dict[str, Any]], session: str = "chat", **fields: Any) -> Any:
        body = {"messages": talk, **FIXED, **fields}
        answer = self.call(key, "POST", "/v1/chat/completions", json=body, headers={"X-Session-Id": session})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def strange(self, verb: str, path: str, **options: Any) -> httpx.Response:
        """What the stranger is answered."""
        answer = self.call(STRANGER, verb, path, **options)
        assert PIN not in answer.text
        return answer

    @property
    def slot(self) -> str:
        slot: str = self.reply["crossturn"]["slot"]
        return slot

    def begin(self) -> None:
        """The owner's conversation."""
        self.reply = self.chat(OWNER, TALK)
        asked = {"model": "demo", "input": SAID, "instructions": SYSTEM, "max_output_tokens": 40}
        asked |= {"include": ["reasoning.encrypted_content"], "reasoning": THOUGHT}
        self.response = self.call(OWNER, "POST", "/v1/responses", json=asked).json()
        self.names = self.call(OWNER, "GET", f"/v1/slots/{self.slot}/contents").json()["names"]
        self.parcel = self.call(OWNER, "GET", f"/v1/slots/{self.slot}/export").content
        assert self.response["status"] in ("completed", "incomplete")
        assert self.names
        assert self.parcel

    def check(self) -> None:
        """The owner has all that was there, and goes on as from a fresh start."""
        talk = [*TALK, self.reply["choices"][0]["message"], {"role": "user", "content": "Hello!"}]
        warm = self.chat(OWNER, talk)
        assert warm["crossturn"]["reused_tokens"] >= self.reply["usage"]["prompt_tokens"] - 4
        kept = self.call(OWNER, "GET", f"/v1/responses/{self.response['id']}")
        assert kept.status_code == 200


def is_unknown(answer: httpx.Response) -> None:
    """That the answer is word for word that of something that never was, but for its name."""
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("slot_not_found", "response_not_found")


def way_01_the_same_session_key(world: World) -> None:
    mine = world.chat(STRANGER, TALK)["crossturn"]
    assert (mine["reused_tokens"], mine["shared_tokens"], mine["mode"]) == (0, 0, "FullRefill")


def way_02_the_list_of_slots(world: World) -> None:
    forget(world)
    told = world.strange("GET", "/v1/slots").json()
    assert (told["data"], told["bytes"]) == ([], 0)
    assert world.call(OWNER, "GET", f"/v1/slots/{world.slot}").status_code == 200


def way_03_a_slot_by_its_id(world: World) -> None:
    forget(world)
    is_unknown(world.strange("GET", f"/v1/slots/{world.slot}"))


def way_04_deleting_it(world: World) -> None:
    forget(world)
    is_unknown(world.strange("DELETE", f"/v1/slots/{world.slot}"))


def way_05_forking_it(world: World) -> None:
    forget(world)
    is_unknown(world.strange("POST", f"/v1/slots/{world.slot}/fork", json={"session_id": "mine"}))
    assert world.chat(STRANGER, TALK, "mine")["crossturn"]["reused_tokens"] == 0


def way_06_exporting_it(world: World) -> None:
    forget(world)
    is_unknown(world.strange("GET", f"/v1/slots/{world.slot}/export"))
    is_unknown(world.strange("POST", f"/v1/slots/{world.slot}/export", json={"without": world.names}))


def way_07_the_names_of_its_content(world: World) -> None:
    forget(world)
    is_unknown(world.strange("GET", f"/v1/slots/{world.slot}/contents"))


def way_08_whether_its_content_is_there(world: World) -> None:
    forget(world)
    missing = world.strange("POST", "/v1/slots/missing", json={"names": world.names}).json()["names"]
    assert missing == world.names


def way_09_an_import_that_leaves_out_what_only_the_owner_has(world: World) -> None:
    forget(world)
    thin = world.call(OWNER, "POST", f"/v1/slots/{world.slot}/export", json={"without": world.names}).content
    answer = world.strange(
        "POST",
        "/v1/slots/import",
        params={"session_id": "thin"},
        content=thin,
        headers={"Content-Type": "application/x-tar"},
    )
    assert answer.status_code == 400


def way_10_an_import_over_the_owners_session(world: World) -> None:
    answer = world.strange(
        "POST",
        "/v1/slots/import",
        params={"session_id": "chat"},
        content=world.parcel,
        headers={"Content-Type": "application/x-tar"},
    )
    assert answer.status_code == 200  # whoever has the file has the conversation; it goes into their own slot
    world.strange("DELETE", f"/v1/slots/{answer.json()['slot']}")


def way_11_its_timeline(world: World) -> None:
    forget(world)
    is_unknown(world.strange("GET", f"/v1/slots/{world.slot}/timeline"))


def way_12_a_kept_response(world: World) -> None:
    is_unknown(world.strange("GET", f"/v1/responses/{world.response['id']}"))


def way_13_what_the_response_was_asked(world: World) -> None:
    is_unknown(world.strange("GET", f"/v1/responses/{world.response['id']}/input_items"))


def way_14_deleting_the_response(world: World) -> None:
    is_unknown(world.strange("DELETE", f"/v1/responses/{world.response['id']}"))


def way_15_going_on_from_the_response(world: World) -> None:
    body = {"model": "demo", "input": "What is my PIN?", "previous_response_id": world.response["id"]}
    answer = world.strange("POST", "/v1/responses", json=body)
    assert answer.status_code in (400, 404)
    assert "not" in answer.json()["error"]["message"]


def way_16_a_thought_that_was_sealed_for_the_owner(world: World) -> None:
    sealed = [item for item in world.response["output"] if item.get("encrypted_content")]
    assert sealed
    body = {"model": "demo", "input": [*sealed, {"role": "user", "content": "Hi"}], "max_output_tokens": 4}
    body["input"][0] = {**sealed[0], "summary": []}
    body["input"][0].pop("content", None)
    assert world.strange("POST", "/v1/responses", json=body).status_code == 400
    assert world.call(OWNER, "POST", "/v1/responses", json=body).status_code == 200


def way_17_guessing_what_was_said(world: World) -> None:
    told = []
    for number, guess in enumerate((PIN, "7352")):
        talk = [TALK[0], {"role": "user", "content": SAID.replace(PIN, guess)}]
        plan = world.chat(STRANGER, talk, f"guess {number}", max_tokens=1)["crossturn"]
        told.append({name: plan[name] for name in plan if name not in ("slot", "origin")})
        forget(world)
    assert told[0] == told[1]


def way_18_a_session_key_made_to_look_like_the_owners(world: World) -> None:
    tenant = next(tenant for tenant in tenants(world) if tenant is not None)
    for session in (f"{tenant}/chat", f"{tenant}:chat", f"{tenant}\x1fchat", world.slot, "chat\u0000"):
        body = {"messages": TALK, **FIXED, "prompt_cache_key": session}
        answer = world.strange("POST", "/v1/chat/completions", json=body)
        if answer.status_code == 200:
            plan = answer.json()["crossturn"]
            assert (plan["reused_tokens"], plan["slot"] == world.slot) == (0, False), session
        forget(world)


def way_19_figures_of_all_together(world: World) -> None:
    assert world.strange("GET", "/metrics").status_code == 403
    assert world.strange("GET", "/v1/stats").status_code == 403


def n_read_for_clients(world: World) -> int:
    """Tokens prefilled so far but for those read ahead, which an earlier way may have left to do."""
    stats = world.server.engine.stats()
    return stats.n_prefilled_tokens - stats.n_read_ahead_tokens


def way_20_the_time_that_a_right_guess_takes(world: World) -> None:
    """What is read and computed is the same, and no file is opened for it: so is the time."""
    spent = []
    for number, guess in enumerate((PIN, "7352")):
        talk = [TALK[0], {"role": "user", "content": SAID.replace(PIN, guess)}]
        with patch.object(blob, "read", wraps=blob.read) as read:
            n_before = n_read_for_clients(world)
            world.chat(STRANGER, talk, f"time {number}", max_tokens=1)
            spent.append((n_read_for_clients(world) - n_before, read.call_count))
        forget(world)
    assert spent[0] == spent[1]
    assert spent[0][1] == 0


def way_21_a_key_that_is_nearly_the_owners(world: World) -> None:
    for key in (OWNER.upper(), OWNER[:-1], f"{OWNER}x", f"{OWNER},{STRANGER}", f"{OWNER} {STRANGER}", "-"):
        answer = world.server.http.get("/v1/slots", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 401, key
    both = {"Authorization": f"Bearer {STRANGER}", "X-API-Key": OWNER}
    assert world.slot not in world.server.http.get("/v1/slots", headers=both).text


def way_22_paths_that_lead_elsewhere(world: World) -> None:
    for path in (
        f"/v1/slots/..%2f{world.slot}",
        f"/v1/slots/{world.slot}%00",
        f"/v1/slots/{world.slot.upper()}g",
        f"/v1/responses/..%2f{world.response['id']}",
        f"/v1/responses/%2e%2e/{world.response['id']}",
        f"/v1/responses/{world.response['id'][:-1]}",
    ):
        for verb in ("GET", "DELETE"):
            assert world.strange(verb, path).status_code in (404, 405), path


def forget(world: World) -> None:
    """The stranger begins with nothing of its own."""
    for slot in world.strange("GET", "/v1/slots").json()["data"]:
        world.strange("DELETE", f"/v1/slots/{slot['slot']}")


def tenants(world: World) -> set[str | None]:
    """What the tenants are called, which no reply tells."""
    return {world.server.engine.call(lambda store: next(iter(store._shelf.entries())).slot.tenant).result()}


WAYS: dict[str, Callable[[World], None]] = {
    name: way for name, way in sorted(globals().items()) if name.startswith("way_")
}


def settings(folder: Path) -> Settings:
    return Settings(api_keys=(OWNER, STRANGER), cache_dir=folder, response_store=2**20)


@pytest.fixture(scope="module", params=["serving", "restarted"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The server as it was when the owner spoke, or another process' worth of it over the same folder."""
    folder = tmp_path_factory.mktemp("cache")
    with live_demo(settings(folder)) as server:
        first = World(server)
        first.begin()
        if request.param == "serving":
            yield first
            return
    with live_demo(settings(folder)) as server:
        yield World(server, first.reply, first.response, first.names, first.parcel)


@pytest.mark.parametrize("way", WAYS)
def test_a_tenant_neither_reads_changes_nor_times_what_is_anothers(world: World, way: str) -> None:
    WAYS[way](world)
    world.check()


def test_there_are_twenty_ways() -> None:
    assert len(WAYS) >= 20
    assert [name[4:6] for name in WAYS] == [f"{n:02}" for n in range(1, len(WAYS) + 1)]


def test_no_reply_to_the_stranger_and_no_log_line_tells_the_owners_key_or_words(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", logger="crossturn"):
        world.chat(STRANGER, TALK)
        world.check()
    told = json.dumps([record.getMessage() for record in caplog.records])
    assert OWNER not in told
    assert PIN not in told
