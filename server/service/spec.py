"""What a background service runs: a command, and the settings file that it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from platformdirs import user_cache_path, user_config_path, user_log_path

from model.errors import CrossturnError
from server.settings import SECTIONS, Settings, table_of

APP = "crossturn"
# No CROSSTURN_ variable, as settings are in the file, and no token, which other users could read.
_VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
    "HTTPS_PROXY",
    "SSL_CERT_FILE",
)


class ServiceError(CrossturnError):
    """The service cannot be installed or controlled; the message is one line."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One service.

    Attributes:
        command: the command line.
        settings_file: TOML, read by the command at every start.
        log_file: of its output on macOS; systemd has its own journal.
        environment: variables of the user's shell that it needs, such as the folder of models.
    """

    command: tuple[str, ...]
    settings_file: Path
    log_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class Manager(Protocol):
    """The service manager of a system."""

    def install(self, spec: Spec) -> None:
        """Write its definition, replacing an older one, and enable it at every login."""

    def uninstall(self) -> None:
        """Stop it and remove its definition."""

    def start(self) -> None:
        """Start it, or restart it."""

    def stop(self) -> None:
        """Stop it until the next login."""

    @property
    def is_installed(self) -> bool:
        """Whether its definition exists."""
        ...

    def state(self) -> str:
        """Its state in a few words."""
        ...

    def log_command(self, *, follow: bool) -> Sequence[str]:
        """The command that shows its log."""
        ...


def spec() -> Spec:
    """The service for the running Python.

    Raises:
        ServiceError: this Python is in a temporary environment.
    """
    if "archive-v0" in Path(sys.prefix).parts:
        raise ServiceError(
            "this crossturn is in a temporary environment of uvx: install it (uv tool install crossturn) and "
            "try again"
        )
    settings_file = user_config_path(APP) / "service.toml"
    # -P: a folder named `server` in the working directory is not ours.
    command = (sys.executable, "-P", "-m", "server.cli", "serve", "--config", str(settings_file))
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return Spec(command, settings_file, user_log_path(APP) / "crossturn.log", environment)


def write_settings(settings: Settings, file: Path) -> Settings:
    """Write the chosen settings to ``file``, readable only by its owner because it may contain API keys.

    A service keeps conversations on disk by default, because it may be restarted at any time.

    Returns:
        The written settings.
    """
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    given.setdefault("cache_dir", user_cache_path(APP) / "conversations")
    if Path(settings.model).expanduser().is_dir():
        given["model"] = str(Path(settings.model).expanduser().resolve())
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["# What `crossturn service` serves. Restart it after a change: crossturn service start"]
    for section in SECTIONS:
        named = {name: given[name] for name in section.model_fields if given.get(name) is not None}
        if named:
            lines += ["", f"[{table_of(section)}]", *(f"{name} = {_toml(v)}" for name, v in named.items())]
    file.touch(mode=0o600)
    file.chmod(0o600)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Settings.model_validate(given)


def run(*command: str) -> str:
    """The output of a system command.

    Raises:
        ServiceError: it failed, or is not installed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ServiceError(f"{command[0]} is not installed") from error
    if done.returncode:
        told = " ".join((done.stderr or done.stdout).split())
        raise ServiceError(f"{' '.join(command)} failed: {told or f'status {done.returncode}'}")
    return done.stdout


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = str(value.resolve()) if isinstance(value, Path) else str(value)
    return json.dumps(text)  # a basic string in TOML is written as in JSON
