"""A launchd agent."""

from __future__ import annotations

import os
import plistlib
import re
from collections.abc import Sequence
from pathlib import Path

from server.service.spec import ServiceError, Spec, run

LABEL = "org.crossturn.server"


class Launchd:
    """Controls the agent through ``launchctl``, in the login session of the user."""

    @property
    def file(self) -> Path:
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def install(self, spec: Spec) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        if self._is_loaded:
            run("launchctl", "bootout", self._target)  # an older definition is in force until then
        self.file.write_bytes(agent(spec))

    def uninstall(self) -> None:
        self.stop()
        self.file.unlink(missing_ok=True)

    def start(self) -> None:
        if self._is_loaded:
            run("launchctl", "kickstart", "-k", self._target)
        else:
            run("launchctl", "bootstrap", self._domain, str(self.file))  # RunAtLoad starts it

    def stop(self) -> None:
        if self._is_loaded:
            run("launchctl", "bootout", self._target)

    @property
    def is_installed(self) -> bool:
        return self.file.exists()

    def state(self) -> str:
        try:
            told = run("launchctl", "print", self._target)
        except ServiceError:
            return "stopped"
        found = re.search(r"^\s*state = (.+)$", told, re.MULTILINE)
        return found[1] if found else "unknown"

    def log_command(self, *, follow: bool) -> Sequence[str]:
        log = plistlib.loads(self.file.read_bytes())["StandardErrorPath"]
        return ["tail", "-n", "100", *(["-F"] if follow else []), log]

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _target(self) -> str:
        return f"{self._domain}/{LABEL}"

    @property
    def _is_loaded(self) -> bool:
        try:
            run("launchctl", "print", self._target)
        except ServiceError:
            return False
        return True


def agent(spec: Spec) -> bytes:
    """The agent's property list. The agent is restarted when it fails or is killed, not when it is
    stopped."""
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(spec.command),
            "EnvironmentVariables": dict(spec.environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 10,
            "ExitTimeOut": 30,
            # Otherwise macOS treats it as background work and throttles it.
            "ProcessType": "Interactive",
            "StandardOutPath": str(spec.log_file),
            "StandardErrorPath": str(spec.log_file),
            "Umask": 0o077,
        }
    )
