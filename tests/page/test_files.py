"""The page's files, over HTTP. What the page does in a browser is in ``tests/browser``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from server.page.page import read_page
from server.settings import Settings
from tests.fakes.live_server import live

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with (
        live(settings=Settings(api_keys=("secret",))) as server,
        httpx.Client(base_url=server.http.base_url) as client,
    ):
        yield client


def test_a_browser_gets_the_page_at_the_root_without_a_key(http: httpx.Client) -> None:
    answer = http.get("/", headers=BROWSER)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>crossturn</title>" in answer.text


def test_a_program_gets_json_at_the_root(http: httpx.Client) -> None:
    assert http.get("/").json()["name"] == "crossturn"
    assert http.head("/").status_code == 200


def test_every_file_that_the_page_names_is_served(http: httpx.Client) -> None:
    page = read_page()
    named = set(re.findall(r'(?:href|src)="page/([\w.]+)"', page["index.html"].content.decode()))
    for name in [name for name in page if name.endswith(".js")]:
        named |= set(re.findall(r'from "\./([\w.]+)"', page[name].content.decode()))
    assert named == set(page) - {"index.html"}
    assert {http.get(f"/page/{name}").status_code for name in named} == {200}
    assert http.get("/page/none.js").status_code == 404


def test_a_page_file_forbids_whatever_is_inline_or_from_elsewhere(http: httpx.Client) -> None:
    policy = http.get("/", headers=BROWSER).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    markup = read_page()["index.html"].content.decode()
    assert not re.search(r"https?:|style=|<script>|\son\w+=", markup)


def test_a_file_that_the_browser_has_is_not_sent_again(http: httpx.Client) -> None:
    first = http.get("/page/app.js")
    again = http.get("/page/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_live_numbers_need_the_key_that_the_api_needs(http: httpx.Client) -> None:
    assert http.get("/v1/stats").status_code == 401
