"""``crossturn explain``: why the last turns of a session read what they read."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import datetime

from server.commands.api import Api, add_server
from server.commands.words import seconds_in_words

NAME = "explain"
HELP = "say what the last turns of a session read again, and why"


def add_options(parser: ArgumentParser) -> None:
    """The session and the server."""
    parser.add_argument("slot", nargs="?", help="its slot (default: the one that was used last)")
    parser.add_argument("-n", "--turns", type=int, default=10, help="so many turns (default: 10)")
    add_server(parser)


def run(chosen: Namespace) -> int:
    """Print the turns, oldest first.

    Raises:
        ApiError: the server has no such slot, or cannot be reached.
    """
    api = Api.of(chosen)
    slot = chosen.slot or _last_used(api)
    if slot is None:
        print("Nothing is remembered yet.")
        return 0
    timeline = api.get(f"/v1/slots/{slot}/timeline")
    print(f"slot {slot}")
    for turn in timeline["data"][-max(1, chosen.turns) :]:
        at = datetime.fromtimestamp(turn["at"]).strftime("%H:%M:%S")
        again = f", {turn['read_again_tokens']} read again" if turn["read_again_tokens"] else ""
        waited = turn["first_token_s"]
        first = "" if waited is None else f", first token after {seconds_in_words(waited)}"
        print(
            f"\n{at}  {turn['mode']}: {turn['prompt_tokens']} tokens, {turn['reused_tokens']} reused, "
            f"{turn['new_tokens']} new{again}{first}"
        )
        print(f"  {turn['explanation']}")
    return 0


def _last_used(api: Api) -> str | None:
    slots = api.get("/v1/slots")["data"]
    if not slots:
        return None
    last = min(slots, key=lambda slot: min(entry["idle_s"] for entry in slot["entries"]))
    return str(last["slot"])
