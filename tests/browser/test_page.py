"""What people do on the page, in Chromium, on the demo model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, expect

from model.text.deltas import ContentDelta
from server.events import Event, GenerationRequest, Progress
from tests.browser.conftest import Visit, visiting
from tests.fakes.cache_kit import make_store
from tests.fakes.fake_engine import FakeEngine, planned
from tests.fakes.live_server import live

WEATHER = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Get the current weather of a city.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                },
            },
        }
    ]
)
ANNA = "Hi! My name is Anna and I live in Oslo."


def test_a_message_is_answered_and_the_strip_tells_what_the_reply_told(visit: Visit) -> None:
    visit.say(ANNA)
    visit.say("What is my name?")
    assert visit.texts("assistant")[-1] == "Your name is Anna."
    for i, plan in enumerate(visit.plans):
        key = visit.key(i)
        told = {
            "reused": plan["reused_tokens"] - plan.get("read_ahead_tokens", 0),
            "read ahead": plan.get("read_ahead_tokens", 0),
            "read again": plan["shared_tokens"] - plan["reused_tokens"],
            "new": plan["prompt_tokens"] - plan["shared_tokens"],
            "written": plan["written"],
        }
        assert key == {name: n for name, n in told.items() if n}
    assert visit.plans[-1]["mode"] == "ExactAppend"
    words = visit.page.locator(".strip .words").last.inner_text()
    assert "read only what was added" in words


def test_text_is_shown_while_it_is_written(visit: Visit) -> None:
    page = visit.page
    page.evaluate("window.lengths = []")
    page.evaluate(
        """() => {
             const text = () => document.querySelector(".message.assistant .text");
             const note = () => lengths.push(text()?.innerText.length);
             new MutationObserver(note).observe(document.getElementById("thread"),
                                                {childList: true, subtree: true});
           }"""
    )
    page.fill("#prompt", "Count from one to thirty in words.")
    page.press("#prompt", "Enter")
    visit.wait()
    seen = page.evaluate("[...new Set(lengths)].filter(Boolean)")
    assert len(seen) > 1
    assert seen == sorted(seen)


def test_escape_stops_a_reply_and_what_was_written_stays(browser: Browser) -> None:
    engine = FakeEngine(store=make_store())

    def endless(request: GenerationRequest) -> Iterator[Event]:
        yield planned(request)
        yield Progress(0, (ContentDelta("And so"),))
        assert engine.was_cancelled.wait(10)

    engine.script = endless
    with live(engine) as server, visiting(browser, server.url.removesuffix("/v1")) as visit:
        visit.open()
        visit.page.fill("#prompt", "Tell me a long story.")
        visit.page.press("#prompt", "Enter")
        expect(visit.page.locator(".message.assistant .text")).to_have_text("And so")
        visit.page.keyboard.press("Escape")
        visit.wait()
        expect(visit.page.locator("#status")).to_have_text("Stopped.")
        assert visit.texts("assistant") == ["And so"]
        assert engine.was_cancelled.wait(10)


def test_an_edit_begins_a_second_version_and_both_can_be_looked_at(visit: Visit) -> None:
    visit.say(ANNA)
    visit.page.locator(".message.user button", has_text="Edit").first.click()
    expect(visit.page.locator("#prompt")).to_have_value(ANNA)
    visit.say("Hi! My name is Ben and I live in Rome.")
    visit.say("What is my name?")
    assert visit.texts("assistant")[-1] == "Your name is Ben."
    expect(visit.page.locator(".version")).to_have_text("2 of 2")
    visit.page.get_by_label("Previous version").click()
    assert visit.texts("user") == [ANNA]


def test_a_reply_can_be_regenerated(visit: Visit) -> None:
    visit.say(ANNA)
    with visit.reply():
        visit.page.locator("button", has_text="Regenerate").click()
    expect(visit.page.locator(".message.assistant .version")).to_have_text("2 of 2")
    assert visit.plans[-1]["mode"] != "FullRefill"


def test_a_branch_goes_on_apart_and_reuses_what_was_read(visit: Visit) -> None:
    visit.say(ANNA)
    visit.say("What is my name?")
    visit.page.locator("button", has_text="Branch from here").first.click()
    expect(visit.page.locator("#conversations li")).to_have_count(2)
    assert visit.texts("user") == [ANNA]
    visit.say("Where do I live?")
    assert visit.texts("assistant")[-1] == "You live in Oslo."
    assert visit.plans[-1]["reused_tokens"] > 0
    visit.page.locator("#conversations li button").nth(2).click()
    assert visit.texts("user") == [ANNA, "What is my name?"]


def test_a_tool_call_is_shown_and_its_result_is_asked_for(visit: Visit) -> None:
    page = visit.page
    page.locator("#open-settings").click()
    page.fill("#tools", WEATHER)
    page.locator("#settings-done").click()
    visit.say("What is the weather in Oslo?")
    call = page.locator(".call")
    expect(call).to_contain_text("Calls get_weather")
    expect(call).to_contain_text('"city": "Oslo"')
    call.get_by_label("Result of get_weather").fill('{"temperature": 12, "condition": "rain"}')
    with visit.reply():
        call.locator("button", has_text="Send result").click()
    assert "rain" in visit.texts("assistant")[-1]


def test_tools_that_are_no_json_keep_the_settings_open(visit: Visit) -> None:
    visit.page.locator("#open-settings").click()
    visit.page.fill("#tools", "[{")
    visit.page.locator("#settings-done").click()
    expect(visit.page.locator("#settings-error")).to_contain_text("not JSON")
    visit.page.fill("#tools", "")
    visit.page.locator("#settings-done").click()


def test_a_thought_is_folded_and_can_be_opened(visit: Visit) -> None:
    page = visit.page
    page.locator("#open-settings").click()
    page.check("#thinking")
    page.locator("#settings-done").click()
    visit.say("What is 12 + 30?")
    thought = page.locator(".thought")
    assert not thought.evaluate("(element) => element.open")
    thought.locator("summary").click()
    assert thought.locator("div").inner_text()
    assert "42" in visit.texts("assistant")[-1]


def test_the_memory_panel_draws_what_the_server_remembers_and_forgets_it(visit: Visit) -> None:
    page = visit.page
    visit.say(ANNA)
    page.locator("#open-memory").click()
    slot = visit.plans[0]["slot"]
    mine = page.locator(f'[data-slot="{slot}"]')
    expect(mine.locator("h3")).to_have_text(ANNA[:60])
    expect(mine.locator(".line i").first).to_be_attached()
    mine.locator("button", has_text="Forget").click()
    expect(mine).to_have_count(0)


def test_a_conversation_is_there_again_after_a_reload(visit: Visit) -> None:
    visit.say(ANNA)
    visit.open()
    assert visit.texts("user") == [ANNA]
    visit.say("What is my name?")
    assert visit.plans[-1]["mode"] == "ExactAppend"


def test_a_server_with_a_key_asks_for_it_and_takes_it(browser: Browser, locked_url: str) -> None:
    with visiting(browser, locked_url, expected="401") as visit:
        visit.page.goto(locked_url)
        expect(visit.page.locator("#settings-error")).to_contain_text("API key")
        visit.page.fill("#api-key", "secret")
        visit.page.locator("#settings-done").click()
        visit.page.wait_for_selector("#model:not(:empty)")
        visit.say(ANNA)
        assert visit.texts("assistant")


def test_what_a_model_or_person_writes_is_never_markup(visit: Visit) -> None:
    visit.say('<img src=x onerror="document.title=1"> **bold** `code`')
    assert visit.page.locator("#thread img").count() == 0
    assert visit.page.title() == "crossturn"


def test_the_page_works_by_keyboard_alone_on_a_phone_in_the_dark(browser: Browser, url: str) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with visiting(browser, url, **phone) as visit:
        visit.open()
        visit.page.keyboard.press("Tab")
        expect(visit.page.locator(".skip")).to_be_focused()
        visit.page.keyboard.press("Enter")
        visit.page.locator("#prompt").focus()
        visit.page.keyboard.type(ANNA)
        with visit.reply():
            visit.page.keyboard.press("Enter")
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        visit.page.locator("#open-sidebar").click()
        expect(visit.page.locator("#sidebar")).to_be_visible()
        names = visit.page.evaluate(
            """[...document.querySelectorAll("button, input, textarea")].filter((e) => e.checkVisibility())
               .filter((e) => !(e.innerText || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)"""
        )
        assert names == []


def test_twenty_turns_with_every_kind_of_change_are_explained_in_words(visit: Visit) -> None:
    page = visit.page
    page.locator("#open-settings").click()
    page.fill("#tools", WEATHER)
    page.locator("#settings-done").click()
    visit.say(ANNA)
    for a in range(11, 22):
        visit.say(f"What is {a} + 20?")
    page.locator(".message.user button", has_text="Edit").nth(8).click()
    visit.say("What is 40 + 20?")
    with visit.reply():
        page.locator("button", has_text="Regenerate").last.click()
    page.locator("button", has_text="Branch from here").nth(3).click()
    visit.say("What is my name?")
    visit.say("What is the weather in Oslo?")
    call = page.locator(".call").last
    call.get_by_label("Result of get_weather").fill('{"temperature": 12}')
    with visit.reply():
        call.locator("button", has_text="Send result").click()
    for a in range(5):
        visit.say(f"What is {a + 30} + 11?")
    assert len(visit.plans) >= 20
    modes = {plan["mode"] for plan in visit.plans}
    assert {"ExactAppend", "ReplayFromCheckpoint"} <= modes
    for plan in visit.plans:
        assert plan["prefilled_tokens"] == plan["prompt_tokens"] - plan["reused_tokens"]
        assert plan["reason"]
    if folder := os.environ.get("CROSSTURN_SCREENSHOTS"):
        page.locator("#open-memory").click()
        page.wait_for_selector("#slots li")
        page.screenshot(path=Path(folder) / "page.png")
