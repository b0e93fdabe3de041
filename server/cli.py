"""The ``crossturn`` command: which commands there are, and plain words when one of them fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from model.errors import CrossturnError
from server.commands import (
    Command,
    chat,
    check,
    completion,
    explain,
    launch,
    models,
    pack,
    serve,
    service,
    sessions,
    top,
)

COMMANDS: tuple[Command, ...] = (
    serve,
    chat,
    launch,
    top,
    sessions,
    explain,
    pack,
    models,
    check,
    service,
    completion,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    chosen = parser().parse_args(arguments)
    command: Command = chosen.command
    try:
        return command.run(chosen)
    except CrossturnError as error:
        print(f"crossturn: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="crossturn",
        description="OpenAI-compatible chat server for Qwen3.5 hybrid models that never reads a "
        "conversation twice.",
    )
    top.add_argument("--version", action="version", version=f"crossturn {version('crossturn')}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        added = commands.add_parser(command.NAME, help=command.HELP, allow_abbrev=False)
        added.set_defaults(command=command)
        command.add_options(added)
    return top


if __name__ == "__main__":
    sys.exit(main())
