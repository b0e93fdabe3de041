"""``crossturn chat``: talk to a running server in a terminal, with what was reused below each reply."""

from __future__ import annotations

import json
import time
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from server.commands.api import Api, ApiError, add_server
from server.commands.command import Command, seconds_in_words

_COMMANDS = """\
/new            begin a new conversation
/retry          answer the last message again
/edit TEXT      change the last message and answer that
/system TEXT    set the system prompt; without TEXT, none
/think on|off   let the model think, or not
/quit           leave; so does Ctrl-D. Ctrl-C stops a reply"""

_STYLES = {"reused": "green", "read again": "yellow", "new": "blue", "written": "magenta"}
_WIDTH = 40
_PATIENCE_S = 0.5
"""No progress is shown for a prompt that is prefilled within this time."""


def add_options(parser: ArgumentParser) -> None:
    """The server, and the parameters of requests."""
    parser.add_argument("--system", default="", help="a system prompt")
    parser.add_argument("--think", action="store_true", help="let the model think")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest reply")
    parser.add_argument("--temperature", type=float, metavar="T", help="of sampling (default: the model's)")
    add_server(parser)


def run(chosen: Namespace) -> int:
    """Talk until the user leaves.

    Raises:
        ApiError: the server cannot be reached at the start.
    """
    api = Api.of(chosen)
    console = Console(highlight=False)
    model = api.get("/v1/models")["data"][0]["id"]
    console.print(f"[bold]{model}[/] at {api.url}. /help lists what can be typed.")
    chat = Chat(api, console, chosen.system, chosen.think, _fields(chosen))
    while (line := _read(console)) is not None:
        if not chat.take(line.strip()):
            break
    return 0


def _fields(chosen: Namespace) -> dict[str, Any]:
    given = {"max_tokens": chosen.max_tokens, "temperature": chosen.temperature}
    return {name: value for name, value in given.items() if value is not None}


def _read(console: Console) -> str | None:
    try:
        return console.input("\n[bold cyan]›[/] ")
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None


@dataclass
class Chat:
    """One conversation at a time.

    Attributes:
        messages: of the conversation, without the system prompt.
    """

    api: Api
    console: Console
    system: str = ""
    thinks: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    session: str = field(default_factory=lambda: f"terminal-{uuid.uuid4().hex}")

    def take(self, line: str) -> bool:
        """Handle ``line``; False when the user leaves."""
        command, _, rest = line.partition(" ")
        match command:
            case "":
                pass
            case "/quit" | "/exit":
                return False
            case "/new":
                self.messages.clear()
                self.console.print("A new conversation.")
            case "/retry":
                self._again(None)
            case "/edit" if rest:
                self._again(rest)
            case "/system":
                self.system = rest
                self.console.print("The system prompt is set." if rest else "There is no system prompt.")
            case "/think" if rest in ("on", "off"):
                self.thinks = rest == "on"
            case _ if command.startswith("/"):
                self.console.print(_COMMANDS)
            case _:
                self.messages.append({"role": "user", "content": line})
                self._answer()
        return True

    def _again(self, text: str | None) -> None:
        """Go back to the user's last message, and replace it by ``text``."""
        while self.messages and self.messages[-1]["role"] != "user":
            self.messages.pop()
        if not self.messages:
            self.console.print("Nothing was said yet.")
            return
        if text is not None:
            self.messages[-1] = {"role": "user", "content": text}
        self._answer()

    def _answer(self) -> None:
        begun, first_s, reply = time.monotonic(), None, Reply()
        try:
            for chunk in self._chunks():
                self._tell_progress(chunk, begun)
                for kind, text in reply.take(chunk):
                    if first_s is None:
                        first_s = time.monotonic() - begun
                    self.console.print(Text(text, style="dim italic" if kind == "thought" else ""), end="")
        except KeyboardInterrupt:
            self.console.print("\n[dim]Stopped.[/]")
        except ApiError as error:
            self.console.print(f"[red]{error}[/]")
        self.console.print()
        if reply.content or reply.calls:
            self.messages.append(reply.message)
        for call in reply.calls.values():
            self.console.print(f"[bold]calls {call['function']['name']}[/] {call['function']['arguments']}")
        if reply.plan is not None:
            self.console.print(strip(reply.plan, reply.n_written))
            took = "" if first_s is None else f" First token after {seconds_in_words(first_s)}."
            self.console.print(Text(f"{reply.plan['mode']}: {reply.plan['reason']}{took}", style="dim"))

    def _tell_progress(self, chunk: dict[str, Any], begun: float) -> None:
        """Show the progress of a long prefill on one line."""
        read = chunk.get("prompt_progress")
        if read and self.console.is_terminal and time.monotonic() - begun > _PATIENCE_S:
            self.console.print(f"\r[dim]reading {read['processed']} of {read['total']} tokens[/]", end="")
            if read["processed"] == read["total"]:
                self.console.print("\r\x1b[K", end="")

    def _chunks(self) -> Iterator[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "messages": [*system, *self.messages],
            "enable_thinking": self.thinks,
            "return_progress": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        headers = {"X-Session-Id": self.session}
        data = json.dumps(body).encode()
        with self.api.open("/v1/chat/completions", data, "application/json", headers=headers) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    chunk: dict[str, Any] = json.loads(line[6:])
                    if "error" in chunk:
                        raise ApiError(str(chunk["error"]["message"]))
                    yield chunk


@dataclass
class Reply:
    """A reply that is being streamed."""

    content: str = ""
    thought: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    plan: dict[str, Any] | None = None
    n_written: int = 0

    def take(self, chunk: dict[str, Any]) -> list[tuple[str, str]]:
        """Add a chunk; the parts of it to show, as kind and text."""
        if "mode" in (chunk.get("crossturn") or {}):
            self.plan = chunk["crossturn"]
        if chunk.get("usage"):
            self.n_written = chunk["usage"]["completion_tokens"]
        shown = []
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                self.thought += thought
                shown.append(("thought", thought))
            if text := delta.get("content"):
                shown.append(("content", text if self.content or not self.thought else f"\n{text}"))
                self.content += text
            for part in delta.get("tool_calls") or ():
                self._grow_call(part)
        return shown

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message of the next request."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = list(self.calls.values())
        return message

    def _grow_call(self, part: dict[str, Any]) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.calls.setdefault(part["index"], empty)
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""


def strip(plan: dict[str, Any], n_written: int) -> Text:
    """A bar of the tokens that were reused, prefilled again, new and generated, to scale and with their
    numbers."""
    parts = {
        "reused": plan["reused_tokens"],
        "read again": plan["shared_tokens"] - plan["reused_tokens"],
        "new": plan["prompt_tokens"] - plan["shared_tokens"],
        "written": n_written,
    }
    whole = max(1, sum(parts.values()))
    bar = Text()
    for name, n in parts.items():
        bar.append("━" * (max(1, round(_WIDTH * n / whole)) if n else 0), style=_STYLES[name])
    for name, n in parts.items():
        if n:
            bar.append(f"  {n} {name}", style=_STYLES[name])
    return bar


CHAT = Command("chat", "talk to a running server, and see what it reused for each reply", add_options, run)
