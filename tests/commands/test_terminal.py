"""``crossturn chat`` and ``crossturn top`` in a pseudo-terminal, on the demo model."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from io import StringIO

import pexpect
import pytest

from server.cli import main
from tests.fakes.live_server import Live, live_demo

PROMPT = "›\x1b\\[0m "
ANNA = "Hi! My name is Anna and I live in Oslo."


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_demo() as running:
        yield running


class Terminal:
    """A command in a terminal of 100 columns, and all that it wrote."""

    def __init__(self, *arguments: str) -> None:
        self._written = StringIO()
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "server.cli", *arguments],
            encoding="utf-8",
            timeout=30,
            dimensions=(30, 100),
        )
        self.child.logfile_read = self._written

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.close(force=True)

    def say(self, line: str) -> None:
        self.child.expect(PROMPT)
        self.child.sendline(line)

    @property
    def written(self) -> str:
        return self._written.getvalue()


def talking(server: Live, *options: str) -> Terminal:
    return Terminal("chat", "--url", server.url, "--temperature", "0", *options)


def test_a_chat_goes_on_and_shows_what_was_reused(server: Live) -> None:
    with talking(server) as terminal:
        terminal.say(ANNA)
        terminal.child.expect("FullRefill: ")
        terminal.say("What is my name?")
        terminal.child.expect("Your name is Anna.")
        terminal.child.expect(r"\d+ reused.*\d+ new.*\d+ written")
        terminal.child.expect("ExactAppend: ")
        terminal.child.expect("First token after")
        terminal.say("/quit")
        terminal.child.expect(pexpect.EOF)


def test_the_last_message_can_be_changed_and_answered_again(server: Live) -> None:
    with talking(server) as terminal:
        terminal.say(ANNA)
        terminal.say("What is my name?")
        terminal.child.expect("Your name is Anna.")
        terminal.say("/retry")
        terminal.child.expect("Your name is Anna.")
        terminal.say("/edit Where do I live?")
        terminal.child.expect("You live in Oslo.")
        terminal.child.expect("reused")


def test_help_and_unknown_commands_list_what_can_be_typed(server: Live) -> None:
    with talking(server) as terminal:
        terminal.say("/help")
        terminal.child.expect("answer the last message again")
        terminal.say("/nonsense")
        terminal.child.expect("answer the last message again")
        terminal.child.expect(PROMPT)
        terminal.child.sendeof()
        terminal.child.expect(pexpect.EOF)


def test_an_interrupt_stops_the_reply_and_not_the_chat(server: Live) -> None:
    with talking(server) as terminal:
        terminal.say(ANNA)
        terminal.child.expect(PROMPT)
        terminal.child.sendintr()
        terminal.child.expect(pexpect.EOF)


def test_little_more_than_the_text_goes_over_the_line(server: Live) -> None:
    """A slow link stays usable: nothing is drawn twice."""
    with talking(server) as terminal:
        terminal.say("Count from one to ten in words.")
        terminal.child.expect("FullRefill: .*First token")
        terminal.child.expect(PROMPT)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.written)
        assert len(terminal.written) < len(plain) + 600


def test_top_shows_the_load_and_the_slots_and_ends_on_an_interrupt(server: Live) -> None:
    slot = server.chat(messages=[{"role": "user", "content": ANNA}]).json()["crossturn"]["slot"]
    with Terminal("top", "--url", server.url, "--interval", "0.1") as terminal:
        terminal.child.expect("0 running")
        terminal.child.expect(slot)
        terminal.child.sendintr()
        terminal.child.expect(pexpect.EOF)


def test_top_prints_once_where_nobody_watches(server: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--url", server.url]) == 0
    assert "evictions 0" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["chat", "top", "explain"])
def test_a_server_that_is_not_there_is_told_in_a_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--url", "http://127.0.0.1:9"]) == 1
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err
