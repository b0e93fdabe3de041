"""The background service: what is written for the system's manager, and what is asked of it."""

from __future__ import annotations

import json
import os
import plistlib
import shlex
import signal
import stat
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import httpx
import pytest

import server.commands.service as service
from server.cli import main
from server.commands.options import read_file
from server.service.launchd import Launchd, agent
from server.service.spec import ServiceError, Spec, spec, write_settings
from server.service.systemd import Systemd, unit
from server.settings import Settings
from tests.http.test_cache_folder import wait_for_a_conversation

# Notes what it is asked for. It "runs" from `restart`, `bootstrap` or `kickstart` on.
MANAGER = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["STAND_IN"])
said = sys.argv[1:]
with (folder / "asked").open("a") as log:
    log.write(" ".join(said) + "\\n")
runs = folder / "runs"
action = next(word for word in said if not word.startswith("--"))
if action in ("restart", "bootstrap", "kickstart"):
    runs.touch()
elif action in ("stop", "bootout", "disable"):
    runs.unlink(missing_ok=True)
elif action == "is-active":
    print("active" if runs.exists() else "inactive")
    sys.exit(0 if runs.exists() else 3)
elif action == "print":
    if not runs.exists():
        sys.exit("Could not find service")
    print("\\tstate = running\\n\\tpid = 7")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, a manager that takes notes, and nobody who answers over HTTP."""
    home = tmp_path / "home"
    tools = tmp_path / "bin"
    for folder in (home, tools):
        folder.mkdir()
    (tmp_path / "manager.py").write_text(MANAGER)
    for name in ("systemctl", "launchctl"):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "manager.py"} "$@"\n')
        (tools / name).chmod(0o755)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(service, "_WAIT_S", 0.0)
    return home


def asked(home: Path) -> list[str]:
    return (home.parent / "asked").read_text().splitlines()


def test_settings_are_kept_in_a_file_that_only_the_owner_reads_and_read_back_as_they_were(home: Path) -> None:
    (home / "model").mkdir()
    given: dict[str, Any] = {
        "model": str(home / "model"),
        "api_keys": ('a"b', "ключ"),
        "port": 0,
        "memory_budget": 2**30,
        "thinking": False,
        "stall_seconds": 2.5,
        "cache_dir": home / "kept here",
    }
    file = home / "new" / "service.toml"
    written = write_settings(Settings.model_validate(given), file)
    assert read_file(file) == written == Settings.model_validate(given)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_conversations_are_kept_on_disk_unless_told_where(home: Path) -> None:
    file = home / "service.toml"
    assert write_settings(Settings(), file).cache_dir == home / ".cache" / "crossturn" / "conversations"
    assert read_file(file).cache_dir == home / ".cache" / "crossturn" / "conversations"


def test_a_relative_model_directory_is_kept_by_its_full_path(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "m").mkdir()
    monkeypatch.chdir(home)
    assert write_settings(Settings(model="m"), home / "s.toml").model == str(home / "m")
    assert write_settings(Settings(model="org/repo"), home / "s.toml").model == "org/repo"


def test_a_unit_runs_the_command_word_by_word_and_restarts_it_when_it_fails() -> None:
    words = ("/a b/python", "-m", 'say "hi"', "100%", "$HOME", "back\\slash")
    parsed = ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(unit(Spec(words, Path("s"), Path("l"), {"HF_HOME": "/a b/100%"})))
    run = parsed["Service"]["ExecStart"]
    assert tuple(word.replace("%%", "%").replace("$$", "$") for word in shlex.split(run)) == words
    assert parsed["Service"]["Restart"] == "on-failure"
    assert shlex.split(parsed["Service"]["Environment"]) == ["HF_HOME=/a b/100%%"]
    assert parsed["Install"]["WantedBy"] == "default.target"


LINUX = [
    "--user daemon-reload",
    "--user enable crossturn.service",
    "--user restart crossturn.service",
]


def on(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.sys, "platform", platform)


def test_linux_installs_a_user_unit_starts_stops_and_removes_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on("linux", monkeypatch)
    file = home / ".config" / "systemd" / "user" / "crossturn.service"
    assert main(["service", "install", "--port", "18765", "--context-length", "4096"]) == 0
    assert asked(home) == LINUX
    assert read_file(spec().settings_file).port == 18765
    assert str(spec().settings_file) in file.read_text()
    assert main(["service", "status"]) == 3
    assert "service: active\nserver: does not answer at http://127.0.0.1:18765/v1" in capsys.readouterr().out
    assert main(["service", "stop"]) == 0
    assert main(["service", "status"]) == 3
    assert "service: inactive" in capsys.readouterr().out
    assert main(["service", "start"]) == 0
    assert main(["service", "uninstall"]) == 0
    assert asked(home)[-2:] == ["--user disable --now crossturn.service", "--user daemon-reload"]
    assert not file.exists()
    assert spec().settings_file.exists()


def test_macos_installs_an_agent_starts_stops_and_removes_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on("darwin", monkeypatch)
    file = home / "Library" / "LaunchAgents" / "org.crossturn.server.plist"
    target = f"gui/{os.getuid()}/org.crossturn.server"
    assert main(["service", "install", "--port", "18766"]) == 0
    assert asked(home)[-1] == f"bootstrap gui/{os.getuid()} {file}"
    definition = plistlib.loads(file.read_bytes())
    assert definition["ProgramArguments"] == list(spec().command)
    assert definition["KeepAlive"] == {"SuccessfulExit": False}
    assert definition["RunAtLoad"] is True
    assert Path(definition["StandardErrorPath"]).parent.is_dir()
    assert main(["service", "status"]) == 3
    assert "service: running" in capsys.readouterr().out
    assert main(["service", "start"]) == 0
    assert asked(home)[-1] == f"kickstart -k {target}"
    assert main(["service", "install", "--port", "18767"]) == 0  # over the older one
    assert [line for line in asked(home) if line.startswith("boot")][-2:] == [
        f"bootout {target}",
        f"bootstrap gui/{os.getuid()} {file}",
    ]
    assert Launchd().log_command(follow=True)[-1] == definition["StandardErrorPath"]
    assert main(["service", "stop"]) == 0
    assert main(["service", "status"]) == 3
    assert "service: stopped" in capsys.readouterr().out
    assert main(["service", "uninstall"]) == 0
    assert not file.exists()


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("action", ["start", "stop", "status", "logs", "uninstall"])
@pytest.mark.usefixtures("home")
def test_without_a_service_there_is_one_line(
    action: str, platform: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(platform, monkeypatch)
    assert main(["service", action]) == 1
    assert (
        capsys.readouterr().err
        == "crossturn: the service is not installed; install it with: crossturn service install\n"
    )


def test_a_system_without_a_manager_is_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on("linux", monkeypatch)
    monkeypatch.setenv("PATH", str(home))
    assert main(["service", "install"]) == 1
    assert capsys.readouterr().err == "crossturn: systemctl is not installed\n"


def test_a_manager_that_refuses_is_quoted_in_one_line(home: Path) -> None:
    refusing = home.parent / "bin" / "systemctl"
    refusing.write_text("#!/bin/sh\necho 'Failed to connect to bus:\n no medium' >&2; exit 1\n")
    with pytest.raises(ServiceError, match=r"daemon-reload failed: Failed to connect to bus: no medium$"):
        Systemd().install(Spec(("x",), Path("s"), Path("l")))


def test_what_uvx_unpacked_for_one_run_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/a/.cache/uv/archive-v0/abc")
    with pytest.raises(ServiceError, match="uv tool install crossturn"):
        spec()


def test_a_service_finds_models_where_the_shell_does_and_gets_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    found = spec().environment
    assert found["HF_HOME"] == "/models"
    assert "a secret" not in found.values()
    assert plistlib.loads(agent(spec()))["EnvironmentVariables"] == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "memory-budget" in script
    assert "uninstall" in script


@pytest.mark.slow
def test_a_service_that_is_killed_comes_back_with_its_conversations(home: Path) -> None:
    """As the manager does it: the unit's command, killed, and run again."""
    options = Settings(port=0, idle_prefill=False)
    what = spec()
    write_settings(options, what.settings_file)
    parsed = ConfigParser(interpolation=None)
    parsed.read_string(unit(what))
    command = [
        part.replace("%%", "%").replace("$$", "$") for part in shlex.split(parsed["Service"]["ExecStart"])
    ]
    system = {"role": "system", "content": "You are a helpful assistant. " * 40}
    messages = [system, {"role": "user", "content": "Hi! My name is Anna and I live in Oslo."}]
    reused = []
    for turn in ("What is my name?", None):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home) as process:
            assert process.stdout is not None
            url = process.stdout.readline().split()[4]
            body = {"messages": messages, "temperature": 0, "max_tokens": 40, "enable_thinking": False}
            reply = httpx.post(f"{url}/chat/completions", json=body, timeout=60).json()
            reused.append(reply["crossturn"]["reused_tokens"])
            if turn is not None:
                messages += [reply["choices"][0]["message"], {"role": "user", "content": turn}]
                wait_for_a_conversation(home / ".cache" / "crossturn" / "conversations")
            process.send_signal(signal.SIGKILL if turn else signal.SIGTERM)
            assert process.wait(30) == (-signal.SIGKILL if turn else 0)
    assert reused[0] == 0
    assert reused[1] > 200
    assert "Anna" in json.dumps(reply)
