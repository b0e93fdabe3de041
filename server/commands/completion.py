"""``crossturn completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

NAME = "completion"
HELP = 'print a shell\'s completion script, e.g. eval "$(crossturn completion zsh)"'

SHELLS = ("bash", "zsh", "fish")


def add_options(parser: ArgumentParser) -> None:
    """Which shell."""
    parser.add_argument("shell", choices=SHELLS)


def run(chosen: Namespace) -> int:
    """Print the script."""
    import shtab

    from server.cli import parser

    print(shtab.complete(parser(), shell=chosen.shell))
    return 0
