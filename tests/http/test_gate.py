"""What is decided before a route sees a request: hosts, origins, HEAD, paths that do not exist."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from server.settings import Settings
from tests.fakes.live_server import ASK, Live, error_of, live


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(
        settings=Settings(allowed_hosts=("mac.lan",), cors_origins=("https://chat.example",))
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8000", 200),
        ("localhost.", 200),
        ("app.localhost:1", 200),
        ("127.0.0.1:8000", 200),
        ("192.168.1.7", 200),
        ("[::1]:8000", 200),
        ("mac.lan:8000", 200),
        ("MAC.LAN", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("mac.lan.evil.example", 403),
        ("evil.example@localhost", 403),
    ],
)
def test_x3_a_server_without_keys_answers_to_its_own_names_alone(
    server: Live, host: str, status: int
) -> None:
    for method, path in (("GET", "/v1/slots"), ("POST", "/v1/chat/completions"), ("GET", "/health")):
        response = server.http.request(method, path, headers={"Host": host}, json=ASK)
        if status == 403:
            assert (response.status_code, error_of(response)["code"]) == (403, "host_not_allowed")
        elif path != "/v1/slots":  # the fake engine has no store
            assert response.status_code == status


def test_x3_any_name_will_do_where_a_key_is_needed_or_all_are_allowed() -> None:
    with live(settings=Settings(api_keys=("k",))) as server:
        assert server.http.get("/v1/models", headers={"Host": "evil.example"}).status_code == 200
    with live(settings=Settings(allowed_hosts=("*",))) as server:
        assert server.http.get("/v1/models", headers={"Host": "any.example"}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "may_call"),
    [
        ("https://chat.example", True),
        ("http://localhost:3000", True),
        ("http://127.0.0.1:5173", True),
        ("http://[::1]:8080", True),
        ("http://app.localhost", True),
        ("http://chat.example", False),
        ("https://chat.example.evil.example", False),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://localhost:3000.evil.example", False),
        ("null", False),
    ],
)
def test_x3_pages_of_this_machine_and_of_named_origins_may_call_and_no_other(
    server: Live, origin: str, may_call: bool
) -> None:
    preflight = server.http.options(
        "/v1/slots/0",
        headers={"Origin": origin, "Access-Control-Request-Method": "DELETE"},
    )
    assert (preflight.status_code == 200) is may_call
    answer = server.http.get("/v1/models", headers={"Origin": origin})
    assert (answer.headers.get("access-control-allow-origin") == origin) is may_call


def test_x3_by_default_no_page_from_elsewhere_may_call() -> None:
    with live() as server:
        answer = server.http.get("/v1/models", headers={"Origin": "https://chat.example"})
        assert "access-control-allow-origin" not in answer.headers


def test_h4_a_page_on_a_public_origin_may_ask_for_the_private_network(server: Live) -> None:
    asked = {
        "Origin": "https://chat.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    response = server.http.options("/v1/chat/completions", headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/v1/models", "/v1/models/demo", "/", "/v1", "/version"]
)
def test_h4_head_is_answered_as_get_without_a_body(server: Live, path: str) -> None:
    whole, head = server.http.get(path), server.http.head(path)
    assert head.status_code == whole.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == whole.headers["content-length"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/"])
def test_h4_the_list_of_models_has_two_spellings(server: Live, path: str) -> None:
    assert server.http.get(path).json()["object"] == "list"


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("GET", "/models", "/v1/models"),
        ("POST", "/completions", "/v1/completions"),
        ("GET", "/nowhere", "/docs"),
    ],
)
def test_h4_a_path_that_is_not_there_answers_with_a_hint(
    server: Live, method: str, path: str, hint: str
) -> None:
    response = server.http.request(method, path, json=ASK)
    assert response.status_code == 404
    assert hint in error_of(response)["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/tags"), ("POST", "/api/chat"), ("POST", "/api/show"), ("GET", "/api/version")],
)
def test_h6_a_client_of_ollama_is_told_what_to_do(server: Live, method: str, path: str) -> None:
    response = server.http.request(method, path, json=ASK)
    assert response.status_code == 404
    message = error_of(response)["message"]
    assert "Ollama" in message
    assert "/v1" in message


def test_every_response_has_an_id_and_the_servers_name() -> None:
    with live(settings=Settings(server_name="mac-1")) as server:
        answers = [
            server.http.get("/health"),
            server.chat(),
            server.chat(stream=True),
            server.chat(n=0),
            server.http.get("/nowhere"),
            server.http.get("/v1/models", headers={"Host": "evil.example"}),
        ]
    assert {answer.headers["x-served-by"] for answer in answers} == {"mac-1"}
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert answers[1].json()["id"] == ids[1]
    assert ids[3].startswith("chatcmpl-")


class Panic(BaseException):
    """What a library in Rust raises when it gives up."""


@pytest.mark.parametrize("fault", [RuntimeError("secret"), Panic("secret")])
def test_x9_a_fault_of_our_own_is_told_in_json_without_its_text(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise fault

    with live() as server, caplog.at_level(logging.CRITICAL, "crossturn.gate"):
        monkeypatch.setattr(server.gateway.served.chat, "render", lambda *_, **__: fail())
        response = server.chat()
        assert response.status_code == 500
        assert "secret" not in response.text
        assert error_of(response)["code"] == "internal_error"
        assert "secret" in caplog.text
        monkeypatch.undo()
        assert server.chat().status_code == 200
