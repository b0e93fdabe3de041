"""A systemd user unit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_config_path

from server.service.spec import APP, ServiceError, Spec, run

UNIT = f"{APP}.service"


class Systemd:
    """Controls the unit through ``systemctl --user``."""

    @property
    def file(self) -> Path:
        return user_config_path("systemd") / "user" / UNIT

    def install(self, spec: Spec) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(unit(spec), encoding="utf-8")
        run("systemctl", "--user", "daemon-reload")
        run("systemctl", "--user", "enable", UNIT)

    def uninstall(self) -> None:
        run("systemctl", "--user", "disable", "--now", UNIT)
        self.file.unlink(missing_ok=True)
        run("systemctl", "--user", "daemon-reload")

    def start(self) -> None:
        run("systemctl", "--user", "restart", UNIT)

    def stop(self) -> None:
        run("systemctl", "--user", "stop", UNIT)

    @property
    def is_installed(self) -> bool:
        return self.file.exists()

    def state(self) -> str:
        try:
            return run("systemctl", "--user", "is-active", UNIT).strip()
        except ServiceError as error:
            return str(error).rpartition(": ")[2]

    def log_command(self, *, follow: bool) -> Sequence[str]:
        tail = ["--follow"] if follow else ["--no-pager"]
        return ["journalctl", "--user", "--unit", UNIT, "--lines", "100", *tail]


def unit(spec: Spec) -> str:
    """The unit file. The unit is restarted when it fails or is killed, not when it is stopped."""
    run_line = f"ExecStart={' '.join(_quoted(part).replace('$', '$$') for part in spec.command)}"
    variables = [f"Environment={_quoted(f'{name}={value}')}" for name, value in spec.environment.items()]
    lines = "\n".join([run_line, *variables])
    return f"""\
[Unit]
Description=crossturn, a chat server that never reads a conversation twice
After=network.target
# A start that fails at once (a missing model, a taken port) is not tried for ever.
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=exec
{lines}
Restart=on-failure
RestartSec=2
TimeoutStopSec=30
UMask=0077
OOMPolicy=stop

[Install]
WantedBy=default.target
"""


def _quoted(part: str) -> str:
    """``part`` in systemd's quotes."""
    escaped = part.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
