"""Conversations from one server to another, over HTTP and by the command, on the demo model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.cli import main
from server.settings import Settings
from tests.fakes.asking import ask, message_of
from tests.fakes.live_server import Live, error_of, live_demo

ANNA = {"role": "user", "content": "Hi! My name is Anna and I live in Oslo."}
NAME = {"role": "user", "content": "What is my name?"}
NO_THOUGHT = {"enable_thinking": False, "temperature": 0}


@pytest.fixture(scope="module")
def here() -> Iterator[Live]:
    with live_demo() as server:
        yield server


@pytest.fixture(scope="module")
def there() -> Iterator[Live]:
    with live_demo(Settings(api_keys=("one", "two"))) as server:
        yield server


def told(server: Live, session: str, said: dict[str, Any] = ANNA) -> tuple[str, list[dict[str, Any]]]:
    """A conversation of one turn: its slot and its messages."""
    body = ask(server, said, prompt_cache_key=session, **NO_THOUGHT)
    return body["crossturn"]["slot"], [said, message_of(body)]


def goes_on(body: dict[str, Any]) -> bool:
    """Whether a turn read only what was new: the question, and the reply before it where nobody had the time
    to read that ahead."""
    plan = body["crossturn"]
    return plan["mode"] != "FullRefill" and plan["prefilled_tokens"] <= 32


def imported(server: Live, file: bytes, session: str, key: str = "one") -> httpx.Response:
    return server.http.post(
        "/v1/slots/import",
        params={"session_id": session},
        content=file,
        headers={"Content-Type": "application/x-tar", "Authorization": f"Bearer {key}"},
    )


def test_a_conversation_goes_on_at_another_server(here: Live, there: Live) -> None:
    slot, messages = told(here, "travels")
    answer = here.http.get(f"/v1/slots/{slot}/export")
    assert answer.headers["content-type"] == "application/x-tar"
    taken = imported(there, answer.content, "arrives").json()
    assert taken["object"] == "slot.imported"
    assert taken["entries"] == 1
    asked = {"prompt_cache_key": "arrives", **NO_THOUGHT}
    body = ask(there, *messages, NAME, **asked)
    assert message_of(body)["content"] == "Your name is Anna."
    assert goes_on(body)
    assert body["crossturn"]["slot"] == taken["slot"]


def test_an_imported_conversation_is_its_tenants_alone(here: Live, there: Live) -> None:
    slot, _ = told(here, "private")
    file = here.http.get(f"/v1/slots/{slot}/export").content
    taken = imported(there, file, "private").json()
    for verb, path in (("GET", ""), ("GET", "/export"), ("GET", "/contents"), ("DELETE", "")):
        other = there.http.request(
            verb, f"/v1/slots/{taken['slot']}{path}", headers={"Authorization": "Bearer two"}
        )
        assert error_of(other)["code"] == "slot_not_found"


def test_a_damaged_file_is_refused_whole(here: Live, there: Live) -> None:
    slot, _ = told(here, "damaged")
    file = here.http.get(f"/v1/slots/{slot}/export").content
    for broken in (b"", b"no file", file[: len(file) // 2], file.replace(b"content/", b"contemt/", 1)):
        refusal = imported(there, broken, "damaged")
        assert refusal.status_code == 400
        assert error_of(refusal)["code"] == "damaged_file"
    assert there.http.get("/v1/slots/" + slot).status_code == 404


def test_a_file_of_another_model_is_refused_by_the_field_that_differs(here: Live, there: Live) -> None:
    slot, _ = told(here, "foreign")
    file = here.http.get(f"/v1/slots/{slot}/export").content
    refusal = imported(there, file.replace(b'"float32"', b'"float16"', 1), "foreign")
    assert refusal.status_code == 400
    error = error_of(refusal)
    assert (error["code"], error["param"]) == ("foreign_file", "kv_dtype")
    assert "float16" in error["message"]


def test_only_what_the_other_server_lacks_is_sent(here: Live, there: Live) -> None:
    ben = {"role": "user", "content": "Hi! My name is Ben and I live in Rome."}
    slot, messages = told(here, "pushed", ben)
    key = {"Authorization": "Bearer one"}
    imported(there, here.http.get(f"/v1/slots/{slot}/export").content, "pushed")
    body = ask(here, *messages, NAME, prompt_cache_key="pushed", **NO_THOUGHT)
    names = here.http.get(f"/v1/slots/{slot}/contents").json()["names"]
    missing = there.http.post("/v1/slots/missing", json={"names": names}, headers=key).json()["names"]
    assert 0 < len(missing) < len(names)
    has = [name for name in names if name not in missing]
    rest = here.http.post(f"/v1/slots/{slot}/export", json={"without": has}).content
    assert len(rest) < len(here.http.get(f"/v1/slots/{slot}/export").content)
    assert imported(there, rest, "pushed").json()["entries"] >= 1
    assert imported(there, rest, "pushed", key="two").status_code == 400  # it lacks what the other has
    assert goes_on(body)


def test_a_name_that_is_no_content_is_refused(there: Live) -> None:
    key = {"Authorization": "Bearer one"}
    refusal = there.http.post("/v1/slots/missing", json={"names": ["../../etc/passwd"]}, headers=key)
    assert error_of(refusal)["param"] == "names[0]"


def test_the_command_lists_shows_exports_imports_pushes_and_deletes(
    here: Live, there: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slot, messages = told(here, "commanded")
    mine = ["--url", here.url]
    theirs = ["--url", there.url, "--api-key", "one"]
    assert main(["sessions", "list", *mine]) == 0
    assert slot in capsys.readouterr().out
    assert main(["sessions", "show", slot, *mine]) == 0
    assert "checkpoints" in capsys.readouterr().out
    file = tmp_path / "anna.session"
    assert main(["sessions", "export", slot, "-o", str(file), *mine]) == 0
    assert main(["sessions", "import", str(file), "--session", "by-command", *theirs]) == 0
    body = ask(there, *messages, NAME, prompt_cache_key="by-command", **NO_THOUGHT)
    assert goes_on(body)
    capsys.readouterr()
    push = ["sessions", "push", slot, "--to", there.url, "--to-api-key", "one", "--session", "by-push"]
    assert main([*push, *mine]) == 0
    assert "had" in capsys.readouterr().out
    body = ask(there, *messages, NAME, prompt_cache_key="by-push", **NO_THOUGHT)
    assert goes_on(body)
    assert main(["sessions", "delete", slot, *mine]) == 0
    assert main(["sessions", "show", slot, *mine]) == 1
    assert "There is no slot" in capsys.readouterr().err
