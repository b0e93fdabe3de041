"""Who may ask what: keys, tenants, sessions, browsers, and the names of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cache.planner import SlotKey
from server.errors import AuthenticationError
from server.http.intake import KeyFileError, Keys, read_keys, tenant_of_key
from server.settings import Settings
from tests.fakes.fake_engine import FakeEngine, fake_served
from tests.fakes.live_server import ASK, Live, error_of, live

USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


def test_f10_every_name_of_the_model_is_taken_and_no_other() -> None:
    with live(served=fake_served("alias", "demo", "/models/demo")) as server:
        for name in ("alias", "demo", "/models/demo", ...):
            assert server.chat(model=name).json()["model"] == "alias"
        response = server.chat(model="gpt-4o")
        assert response.status_code == 404
        assert error_of(response)["code"] == "model_not_found"
        assert server.openai.models.retrieve("/models/demo").id == "/models/demo"
        assert server.http.get("/v1/models/gpt-4o").status_code == 404


def test_f10_patterns_of_other_models_names_stand_for_the_model_once_they_are_given() -> None:
    with live(served=fake_served("demo", patterns=("claude-*", "gpt-4?"))) as server:
        for name in ("claude-opus-5-5", "gpt-4o"):
            assert server.chat(model=name).json()["model"] == "demo"
        for name in ("gpt-4", "gpt-4.1", "aclaude-x", "CLAUDE-1"):
            assert server.chat(model=name).status_code == 404
        assert [model.id for model in server.openai.models.list()] == ["demo"]


@pytest.mark.parametrize(("aliases", "listed"), [((), ["a"]), (("a", "b"), ["a", "b"])])
def test_one_model_is_listed_once_or_by_its_aliases(aliases: tuple[str, ...], listed: list[str]) -> None:
    with live(served=fake_served("a", "b", "/models/demo", aliases=aliases)) as server:
        assert [model.id for model in server.openai.models.list()] == listed


@pytest.mark.parametrize(
    ("headers", "fields", "key"),
    [
        ({}, {}, None),
        ({"X-Session-Id": "h"}, {"prompt_cache_key": "p", "metadata": {"session_id": "m"}}, "h"),
        ({"X-Session-Id": ""}, {"prompt_cache_key": "p", "metadata": {"session_id": "m"}}, "p"),
        ({}, {"metadata": {"session_id": "m", "other": "x"}}, "m"),
        ({}, {"metadata": {"other": "x"}}, None),
    ],
)
def test_the_session_key_is_looked_for_in_order(
    server: Live, headers: dict[str, str], fields: dict[str, Any], key: str | None
) -> None:
    response = server.http.post("/v1/chat/completions", json={**ASK, **fields}, headers=headers)
    assert response.json()["crossturn"]["slot"] == str(SlotKey.for_session(None, key))


def test_g04_preflights_need_no_key_and_answers_carry_cors_headers() -> None:
    settings = Settings(api_keys=("secret",), cors_origins=("http://app.example",))
    with live(FakeEngine(), settings=settings) as server:
        for path in ("/v1/models", "/v1/chat/completions"):
            response = server.http.options(
                path,
                headers={
                    "Authorization": "",
                    "Origin": "http://app.example",
                    "Access-Control-Request-Method": "POST",
                    "Access-Control-Request-Headers": "authorization,content-type",
                },
            )
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == "http://app.example"
        answer = server.http.get("/v1/models", headers={"Origin": "http://app.example"})
        assert answer.headers["access-control-allow-origin"] == "http://app.example"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("HEAD", "/"), ("GET", "/"), ("GET", "/v1"), ("GET", "/version")]
)
def test_g04_open_endpoints_ask_for_no_key(method: str, path: str) -> None:
    with live(settings=Settings(api_keys=("secret",))) as server:
        response = server.http.request(method, path, headers={"Authorization": ""})
        assert response.status_code == 200


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Basic secret", "Bearer", "Bearer sécret"])
def test_without_a_known_key_nothing_is_told(authorization: str) -> None:
    with live(settings=Settings(api_keys=("secret", "other"))) as server:
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models")):
            headers = {"Authorization": authorization.encode("latin-1")}
            response = server.http.request(method, path, json=ASK, headers=headers)
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"


def test_keys_do_not_show_where_settings_are_printed() -> None:
    assert "secret" not in repr(Settings(api_keys=("secret",)))


def test_keys_are_tenants_whose_slots_differ() -> None:
    with live(settings=Settings(api_keys=("one", "two"))) as server:
        slots = {
            server.http.post(
                "/v1/chat/completions",
                json={**ASK, "prompt_cache_key": "k"},
                headers={"Authorization": f"Bearer {key}"},
            ).json()["crossturn"]["slot"]
            for key in ("one", "two")
        }
    assert len(slots) == 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405)],
)
def test_unknown_paths_and_methods_are_errors_of_the_same_shape(
    server: Live, method: str, path: str, status: int
) -> None:
    response = server.http.request(method, path)
    assert response.status_code == status
    message = error_of(response)["message"]
    assert status == 405 or f"{method} {path}" in message


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/chat/completions", "POST"),
        ("/health", "GET, HEAD"),
        ("/v1", "GET, HEAD"),
        ("/v1/slots/0", "GET, HEAD, DELETE"),
    ],
)
def test_a_refused_method_is_told_all_that_may_be_done(server: Live, path: str, methods: str) -> None:
    assert server.http.put(path).headers["allow"] == methods


def test_keys_of_a_file_are_known_by_their_digest_and_are_tenants_by_name(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    digests = [hashlib.sha256(key).hexdigest() for key in (b"k1", b"k2")]
    file.write_text(f"# ours\n\nanna  {digests[0]}\nbo {digests[1]}\n")
    keys = Keys.of(Settings(api_keys=("k3",), api_key_file=file))
    assert [keys.tenant_of(key) for key in ("k1", "k2", "k3")] == ["anna", "bo", tenant_of_key("k3")]
    for unknown in ("k4", "anna", hashlib.sha256(b"k1").hexdigest(), ""):
        with pytest.raises(AuthenticationError):
            keys.tenant_of(unknown)


@pytest.mark.parametrize(
    "content", ["", "# none\n", "anna k1\n", f"anna {'0' * 63}", f"a {'0' * 64}\na {'1' * 64}"]
)
def test_a_wrong_file_of_keys_is_refused_without_telling_its_lines(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(KeyFileError) as caught:
        read_keys(file)
    assert "k1" not in str(caught.value)


def test_the_document_says_where_a_key_goes() -> None:
    with live() as server:
        document = server.http.get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"HTTPBearer", "APIKeyHeader"}
    for path in ("/v1/chat/completions", "/v1/slots/{slot}", "/metrics", "/v1/models"):
        for operation in document["paths"][path].values():
            assert operation["security"], path
    assert "security" not in document["paths"]["/health"]["get"]
