"""The ``crossturn`` command line: its commands, and a plain message when one of them fails."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.metadata import version

from model.errors import CrossturnError
from server.commands.chat import CHAT
from server.commands.check import CHECK
from server.commands.command import Command
from server.commands.launch import LAUNCH
from server.commands.models import MODELS
from server.commands.pack import PACK
from server.commands.serve import SERVE
from server.commands.service import SERVICE
from server.commands.sessions import EXPLAIN, SESSIONS
from server.commands.top import TOP


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    chosen = parser().parse_args(arguments)
    command: Command = chosen.command
    try:
        return command.run(chosen)
    except CrossturnError as error:
        print(f"crossturn: {error}", file=sys.stderr)
        return 1


def parser() -> ArgumentParser:
    """The whole command line."""
    top = ArgumentParser(
        prog="crossturn",
        description="OpenAI-compatible chat server for Qwen3.5 hybrid models that never reads a "
        "conversation twice.",
    )
    top.add_argument("--version", action="version", version=f"crossturn {version('crossturn')}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.help, allow_abbrev=False)
        added.set_defaults(command=command)
        command.add_options(added)
    return top


def _add_shell(parser: ArgumentParser) -> None:
    """Which shell."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _complete(chosen: Namespace) -> int:
    """Print the script."""
    import shtab

    print(shtab.complete(parser(), shell=chosen.shell))
    return 0


COMPLETION = Command(
    "completion",
    'print a shell\'s completion script, e.g. eval "$(crossturn completion zsh)"',
    _add_shell,
    _complete,
)

COMMANDS = (SERVE, CHAT, LAUNCH, TOP, SESSIONS, EXPLAIN, PACK, MODELS, CHECK, SERVICE, COMPLETION)


if __name__ == "__main__":
    sys.exit(main())
