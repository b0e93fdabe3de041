"""``crossturn service``: the server in the background, started at login and after a crash."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from server.commands.command import Command
from server.commands.options import add_settings, read_file, settings_of
from server.service.launchd import Launchd
from server.service.spec import Manager, ServiceError, spec, write_settings
from server.service.systemd import Systemd
from server.settings import Settings

_WAIT_S = 30.0


def add_options(parser: ArgumentParser) -> None:
    """A subcommand for each action."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, told: str, act: Callable[[Namespace, Manager], int]) -> ArgumentParser:
        added: ArgumentParser = actions.add_parser(name, help=told, description=told, allow_abbrev=False)
        added.set_defaults(act=act)
        return added

    install = add("install", "install and start it; the options are those of `crossturn serve`", _install)
    add_settings(install)
    add("start", "start it, or start it again with changed settings", _start)
    add("stop", "stop it until the next login", _stop)
    add("status", "whether it runs, and what it serves", _status)
    logs = add("logs", "the end of its log", _logs)
    logs.add_argument("-f", "--follow", action="store_true", help="also print new lines as they come")
    add("uninstall", "stop and remove it; conversations and settings stay", _uninstall)


def run(chosen: Namespace) -> int:
    """Run the action with the service manager of this system."""
    manager: Manager = Launchd() if sys.platform == "darwin" else Systemd()
    if chosen.act is not _install and not manager.is_installed:
        raise ServiceError("the service is not installed; install it with: crossturn service install")
    status: int = chosen.act(chosen, manager)
    return status


def _install(chosen: Namespace, manager: Manager) -> int:
    what = spec()
    settings = write_settings(settings_of(chosen), what.settings_file)
    manager.install(what)
    manager.start()
    print(f"installed; its settings are in {what.settings_file}")
    if sys.platform == "linux":
        print("it ends when you log out, unless `loginctl enable-linger` lets your services stay")
    return _wait(settings, manager)


def _start(_: Namespace, manager: Manager) -> int:
    manager.start()
    return _wait(read_file(spec().settings_file), manager)


def _stop(_: Namespace, manager: Manager) -> int:
    manager.stop()
    print("stopped")
    return 0


def _status(_: Namespace, manager: Manager) -> int:
    settings = read_file(spec().settings_file)
    models = _served(settings)
    print(f"service: {manager.state()}")
    print(f"server: {'serves ' + models if models else 'does not answer'} at {_url(settings)}")
    return 0 if models else 3


def _logs(chosen: Namespace, manager: Manager) -> int:
    try:
        return subprocess.run(manager.log_command(follow=chosen.follow)).returncode
    except KeyboardInterrupt:
        return 0
    except FileNotFoundError as error:
        raise ServiceError(f"{error.filename} is not installed") from error


def _uninstall(_: Namespace, manager: Manager) -> int:
    manager.uninstall()
    print("removed")
    return 0


def _wait(settings: Settings, manager: Manager) -> int:
    """Wait for the server and print whether it is ready; the exit status."""
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        if models := _served(settings):
            print(f"it serves {models} at {_url(settings)}")
            return 0
        if manager.state() in {"failed", "inactive"}:
            raise ServiceError("it exited at once; see: crossturn service logs")
        time.sleep(0.5)
    print("it is still loading; see: crossturn service status, crossturn service logs --follow")
    return 0


def _served(settings: Settings) -> str:
    """The model names of a running server; none if it does not answer."""
    headers = {"Authorization": f"Bearer {settings.api_keys[0]}"} if settings.api_keys else {}
    try:
        request = urllib.request.Request(f"{_url(settings)}/models", headers=headers)
        with urllib.request.urlopen(request, timeout=2) as reply:
            return ", ".join(model["id"] for model in json.load(reply)["data"][:1])
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return ""


def _url(settings: Settings) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    return f"http://{host}:{settings.port}/v1"


SERVICE = Command(
    "service",
    "keep the server running in the background: install, start, stop, status, logs, uninstall",
    add_options,
    run,
)
