"""``crossturn serve``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from model.backend import prepare
from server.commands.command import Command
from server.commands.options import add_settings, settings_of
from server.process import SignalWatch, listen
from server.settings import Settings


def add_options(parser: ArgumentParser) -> None:
    """All settings."""
    add_settings(parser)


def run(chosen: Namespace) -> int:
    """Serve until a signal ends it."""
    serve(settings_of(chosen))
    return 0


def serve(settings: Settings) -> None:
    """Check what is cheap to check, then load the model and serve it.

    Raises:
        CrossturnError: the server cannot start; the message is one line.
    """
    watch = SignalWatch()
    with listen(settings.host, settings.port) as listener, watch.running():
        prepare()
        # These modules import MLX, which must not happen before.
        from server.launch import launch
        from server.telemetry.log import set_up

        set_up(settings.log_level, settings.log_format)
        launch(settings, listener, watch)


SERVE = Command("serve", "serve a model over HTTP", add_options, run)
