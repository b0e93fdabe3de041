"""``crossturn sessions``: what a running server remembers, and moving it to another one.
``crossturn explain``: why the last turns of a session read what they read."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import datetime
from pathlib import Path
from typing import Any

from server.commands.api import Api, add_server
from server.commands.command import Command, bytes_in_words, seconds_in_words


def add_options(parser: ArgumentParser) -> None:
    """A subcommand for each action."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, act, text in (
        ("list", _list, "all sessions"),
        ("show", _show, "one session's conversations"),
        ("export", _export, "write a session to a file"),
        ("import", _import, "import a session from a file"),
        ("push", _push, "send a session to another server: only what it lacks"),
        ("delete", _delete, "forget a session"),
    ):
        action = actions.add_parser(name, help=text)
        action.set_defaults(act=act)
        add_server(action)
        if name not in ("list", "import"):
            action.add_argument("slot", help="its slot, as in replies and in 'sessions list'")
        if name == "export":
            action.add_argument("-o", "--output", type=Path, help="the file (default: SLOT.crossturn)")
        if name == "import":
            action.add_argument("file", type=Path)
        if name == "push":
            action.add_argument("--to", required=True, metavar="URL", help="the other server")
            action.add_argument("--to-api-key", metavar="KEY", help="the other server's key")
        if name in ("import", "push"):
            action.add_argument("--session", help="its session key there (default: none)")


def run(chosen: Namespace) -> int:
    """Run the action.

    Raises:
        ApiError: the server refuses, or cannot be reached.
    """
    chosen.act(Api.of(chosen), chosen)
    return 0


def _list(api: Api, _chosen: Namespace) -> None:
    listed = api.get("/v1/slots")
    for slot in listed["data"]:
        print(_line(slot))
    held, budget = bytes_in_words(listed["bytes"]), bytes_in_words(listed["budget_bytes"])
    n = len(listed["data"])
    print(f"{n} session{'' if n == 1 else 's'}, {held} of {budget}")


def _show(api: Api, chosen: Namespace) -> None:
    slot = api.get(f"/v1/slots/{chosen.slot}")
    print(_line(slot))
    for entry in slot["entries"]:
        points = ", ".join(str(point) for point in entry["checkpoints"]) or "none"
        print(f"  {entry['tokens']} tokens, {bytes_in_words(entry['bytes'])}, checkpoints at {points}")


def _export(api: Api, chosen: Namespace) -> None:
    path: Path = chosen.output or Path(f"{chosen.slot}.crossturn")
    n_bytes = api.download(f"/v1/slots/{chosen.slot}/export", path)
    print(f"{path}: {bytes_in_words(n_bytes)}")


def _import(api: Api, chosen: Namespace) -> None:
    taken = api.upload("/v1/slots/import", chosen.file, session_id=chosen.session)
    print(f"slot {taken['slot']}: {taken['entries']} conversations, {taken['tokens']} tokens")


def _push(api: Api, chosen: Namespace) -> None:
    other = Api(chosen.to, chosen.to_api_key)
    names = api.get(f"/v1/slots/{chosen.slot}/contents")["names"]
    missing = set(other.post("/v1/slots/missing", {"names": names})["names"])
    has = [name for name in names if name not in missing]
    with api.opened(f"/v1/slots/{chosen.slot}/export", {"without": has}) as file:
        taken = other.upload("/v1/slots/import", file, session_id=chosen.session)
    print(f"slot {taken['slot']}: {taken['entries']} conversations, {taken['tokens']} tokens;")
    print(f"of {len(names)} parts the other server had {len(has)}")


def _delete(api: Api, chosen: Namespace) -> None:
    api.delete(f"/v1/slots/{chosen.slot}")
    print(f"slot {chosen.slot} is forgotten")


def _line(slot: dict[str, Any]) -> str:
    idle_s = min((entry["idle_s"] for entry in slot["entries"]), default=0.0)
    return (
        f"{slot['slot']}  {len(slot['entries'])} conversations  {slot['tokens']} tokens  "
        f"{bytes_in_words(slot['bytes'])}  idle for {seconds_in_words(idle_s)}"
    )


SESSIONS = Command(
    "sessions", "list, show, export, import, push or delete what a running server remembers", add_options, run
)


def add_explain_options(parser: ArgumentParser) -> None:
    """The session and the server."""
    parser.add_argument("slot", nargs="?", help="its slot (default: the one used last)")
    parser.add_argument("-n", "--turns", type=int, default=10, help="how many turns (default: 10)")
    add_server(parser)


def explain(chosen: Namespace) -> int:
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


EXPLAIN = Command(
    "explain", "show what the last turns of a session prefilled again, and why", add_explain_options, explain
)
