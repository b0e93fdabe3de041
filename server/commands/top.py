"""``crossturn top``: the load and the memory of a running server, live."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from server.commands.api import Api, add_server
from server.commands.command import Command, bytes_in_words, seconds_in_words


def add_options(parser: ArgumentParser) -> None:
    """The server, and how often it is asked."""
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="(default: 1)")
    parser.add_argument("--once", action="store_true", help="print once and end")
    add_server(parser)


def run(chosen: Namespace) -> int:
    """Refresh until Ctrl-C.

    Raises:
        ApiError: the server can no longer be reached.
    """
    api = Api.of(chosen)
    console = Console()
    stats, at = api.get("/v1/stats"), time.monotonic()
    if chosen.once:
        console.print(picture(stats, stats, 1.0, api.get("/v1/slots")["data"], console.height))
        return 0
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(max(0.1, chosen.interval))
                before, stats = stats, api.get("/v1/stats")
                now = time.monotonic()
                slots = api.get("/v1/slots")["data"]
                live.update(picture(before, stats, now - at, slots, console.height), refresh=True)
                at = now
        except KeyboardInterrupt:
            return 0


def picture(
    before: dict[str, int], now: dict[str, int], seconds: float, slots: list[dict[str, Any]], height: int
) -> Group:
    """Rates over the last ``seconds``, between two statistics, and the slots used most recently."""

    def rate(name: str) -> str:
        return f"{(now[name] - before[name]) / seconds:.0f}"

    share = now["reused_tokens"] / now["prompt_tokens"] if now["prompt_tokens"] else 0.0
    head = Text.assemble(
        (f"{now['running']} running  {now['waiting']} waiting", "bold"),
        f"   decode {rate('generated_tokens')} tok/s   prefill {rate('prefilled_tokens')} tok/s\n",
        f"memory {bytes_in_words(now['bytes'])} of {bytes_in_words(now['budget_bytes'])}",
        f"   evictions {now['evictions']}   {share:.1%} of all prompt tokens reused",
    )
    table = Table("slot", "conversations", "tokens", "memory", "checkpoints", "idle", expand=True)
    by_use = sorted(slots, key=_idle_s)
    for slot in by_use[: max(1, height - 8)]:
        entries = slot["entries"]
        is_running = any(entry["running"] for entry in entries)
        table.add_row(
            slot["slot"],
            str(len(entries)),
            str(slot["tokens"]),
            bytes_in_words(slot["bytes"]),
            str(sum(len(entry["checkpoints"]) for entry in entries)),
            "in use" if is_running else seconds_in_words(_idle_s(slot)),
        )
    return Group(head, table)


def _idle_s(slot: dict[str, Any]) -> float:
    return min((float(entry["idle_s"]) for entry in slot["entries"]), default=0.0)


TOP = Command("top", "watch the requests and the memory of a running server", add_options, run)
