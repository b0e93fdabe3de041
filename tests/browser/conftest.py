"""Chromium on the page of a server with the demo model; whatever goes wrong in the browser fails the test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Response, sync_playwright

from server.settings import Settings
from tests.fakes.live_server import live_demo

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)


@dataclass
class Visit:
    """A browser's visit to the page, and what it saw there.

    Attributes:
        plans: the ``crossturn`` object of each reply, as it came over the wire.
        faults: errors of the console, violations of the policy, requests to elsewhere.
    """

    page: Page
    url: str
    plans: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def open(self) -> Visit:
        """Go to the page and wait until it has met the server."""
        self.page.goto(self.url)
        self.page.wait_for_selector("#model:not(:empty)", state="attached")
        return self

    def say(self, text: str) -> None:
        """Send a message and wait for the end of its reply."""
        self.page.fill("#prompt", text)
        with self.reply():
            self.page.press("#prompt", "Enter")

    def reply(self) -> Any:
        """What is done in this context asks for a reply; it ends when the reply has."""
        return _AwaitedReply(self)

    def wait(self) -> None:
        self.page.wait_for_selector("#send", state="visible")

    def texts(self, role: str) -> list[str]:
        """What the shown messages of ``role`` say."""
        return self.page.locator(f".message.{role} .text").all_inner_texts()

    def key(self, index: int = -1) -> dict[str, int]:
        """The numbers of a strip by what they count."""
        strips = self.page.locator(".strip")
        items = strips.nth(index % strips.count()).locator(".key li").all_inner_texts()
        pairs = (item.replace("\u202f", "").split(" ", 1) for item in items)
        return {name: int(n) for n, name in pairs}


class _AwaitedReply:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    def __enter__(self) -> None:
        self._answers = self._visit.page.expect_response("**/v1/chat/completions")
        self._awaited = self._answers.__enter__()

    def __exit__(self, *details: Any) -> None:
        self._answers.__exit__(*details)
        if details[0] is None:
            answer: Response = self._awaited.value
            self._visit.plans.append(plan_of(answer.text()))
            self._visit.wait()


def plan_of(stream: str) -> dict[str, Any]:
    """The plan in the last chunk of a stream, with the reply's length as ``written``."""
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    last = next(chunk for chunk in reversed(chunks) if "crossturn" in chunk)
    return {**last["crossturn"], "written": last["usage"]["completion_tokens"]}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a server without keys."""
    with live_demo() as server:
        yield server.url.removesuffix("/v1")


@pytest.fixture(scope="session")
def locked_url() -> Iterator[str]:
    """The address of a server that asks for the key ``secret``."""
    with live_demo(Settings(api_keys=("secret",))) as server:
        yield server.url.removesuffix("/v1")


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    with visiting(browser, url) as visit:
        yield visit.open()


class visiting:  # noqa: N801  reads as a verb
    """A visit in a browser profile of its own; ends with no fault seen, but for the texts in ``expected``."""

    def __init__(self, browser: Browser, url: str, expected: str = "", **context: Any) -> None:
        self._context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        self.visit = Visit(self._context.new_page(), url)
        self._expected = expected
        page, faults = self.visit.page, self.visit.faults
        page.on(
            "console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: None if self._is_ours(asked.url) else faults.append(asked.url))

    def _is_ours(self, url: str) -> bool:
        return url.startswith((self.visit.url, "blob:", "data:"))

    def __enter__(self) -> Visit:
        return self.visit

    def __exit__(self, *details: Any) -> None:
        self._context.close()
        if details[0] is None:
            faults = [
                fault for fault in self.visit.faults if not self._expected or self._expected not in fault
            ]
            assert not faults, faults
