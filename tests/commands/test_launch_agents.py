"""``crossturn launch``: what each agent is told, and that nothing of the user's is touched."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.cli import main
from server.commands.agents import AGENTS
from server.commands.launch import reused
from server.settings import Settings
from tests.fakes.cache_kit import make_store
from tests.fakes.fake_engine import FakeEngine, fake_served
from tests.fakes.live_server import Live, live

PROGRAM = """\
#!/bin/sh
env > "$HOME/environment"
printf '%s\\n' "$@" > "$HOME/arguments"
for file in "$@" "$QWEN_CODE_SYSTEM_SETTINGS_PATH"; do
  case "$file" in */crossturn-launch-*) cp "$file" "$HOME/files/" ;; esac
done
exit 3
"""
"""An agent that writes down what it is told."""


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(FakeEngine(store=make_store()), fake_served("small", context_length=40_000)) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which every agent is installed, of a user who has a key of another service."""
    (tmp_path / "files").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    for agent in AGENTS.values():
        program = programs / agent.program
        program.write_text(PROGRAM)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), "/usr/bin", "/bin"]))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of another service")
    for name in ("CROSSTURN_URL", "CROSSTURN_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in (home / "environment").read_text().splitlines())
    return {name: value for name, _, value in pairs}


def arguments(home: Path) -> list[str]:
    return (home / "arguments").read_text().splitlines()


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_gets_the_users_arguments_last_and_leaves_its_status(
    server: Live, home: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path for path in home.rglob("*") if path.parent.name != "files"}
    assert main(["launch", name, "--url", server.url, "--", "-p", "two words"]) == 3
    assert arguments(home)[-2:] == ["-p", "two words"]
    assert "crossturn: the agent has asked for nothing." in capfd.readouterr().err
    written = {path for path in home.rglob("*") if path.parent.name != "files"} - before
    assert written == {home / "environment", home / "arguments"}
    named = [path for path in arguments(home) if "crossturn-launch-" in path]
    assert not any(Path(path).exists() for path in named)


def test_claude_code_is_told_by_its_environment_and_a_foreign_key_is_hidden(server: Live, home: Path) -> None:
    main(["launch", "claude", "--url", server.url])
    told = environment(home)
    assert told["ANTHROPIC_BASE_URL"] == server.url.removesuffix("/v1")
    assert "ANTHROPIC_API_KEY" not in told
    assert told["ANTHROPIC_AUTH_TOKEN"]
    models = {
        value for name, value in told.items() if name.startswith("ANTHROPIC") and name.endswith("MODEL")
    }
    assert models == {"small"}
    assert told["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "40000"
    assert told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "10000"


def test_codex_is_told_by_overrides(server: Live, home: Path) -> None:
    main(["launch", "codex", "--url", server.url])
    given = arguments(home)
    told = dict(
        pair.split("=", 1) for flag, pair in zip(given[::2], given[1::2], strict=True) if flag == "-c"
    )
    assert json.loads(told["model_providers.crossturn.base_url"]) == server.url
    assert json.loads(told["model"]) == "small"
    assert told["model_context_window"] == "40000"


def test_opencode_is_told_by_a_configuration_in_its_environment(server: Live, home: Path) -> None:
    main(["launch", "opencode", "--url", server.url])
    config = json.loads(environment(home)["OPENCODE_CONFIG_CONTENT"])
    provider = config["provider"]["crossturn"]
    assert config["model"] == config["small_model"] == "crossturn/small"
    assert provider["options"]["baseURL"] == server.url
    assert provider["models"]["small"]["limit"] == {"context": 40_000, "output": 10_000}


@pytest.mark.parametrize(
    ("name", "file", "told"),
    [
        ("qwen", "settings.json", '"contextWindowSize": 40000'),
        ("pi", "crossturn.js", '"contextWindow": 40000'),
        ("aider", "metadata.json", '"max_input_tokens": 40000'),
        ("aider", "settings.yml", '"X-Session-Id": "launch-'),
    ],
)
def test_others_are_told_by_files_that_are_gone_afterwards(
    server: Live, home: Path, name: str, file: str, told: str
) -> None:
    main(["launch", name, "--url", server.url])
    assert told in (home / "files" / file).read_text()
    assert server.url in (home / "environment").read_text() + (home / "files" / file).read_text()


def test_every_folder_has_a_session_of_its_own_that_is_gone_on_with(
    server: Live, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = []
    for folder in ("bin", "files", "bin"):
        monkeypatch.chdir(home / folder)
        main(["launch", "qwen", "--url", server.url])
        sessions.append((home / "files" / "settings.json").read_text())
    assert sessions[0] == sessions[2] != sessions[1]


@pytest.mark.parametrize("order", ["before", "behind"])
def test_print_shows_what_would_be_set_and_starts_nothing(
    server: Live, home: Path, order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--url", server.url, "--print"]
    given = [*options, "qwen"] if order == "before" else ["qwen", *options]
    assert main(["launch", *given, "--", "-p", "two words"]) == 0
    shown = capsys.readouterr().out
    assert f"export OPENAI_BASE_URL={server.url}" in shown
    assert '"contextWindowSize": 40000' in shown
    assert shown.rstrip().endswith("qwen --auth-type openai -p 'two words'")
    assert not (home / "arguments").exists()


def test_print_needs_no_server_and_no_program(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(home))
    assert main(["launch", "claude", "--model", "org/small-4bit", "--print"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# No server answers yet.")
    assert "export ANTHROPIC_MODEL=small-4bit" in shown


def test_a_key_is_passed_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live(FakeEngine(store=make_store()), settings=Settings(api_keys=("secret",))) as server:
        assert main(["launch", "codex", "--url", server.url]) == 1
        monkeypatch.setenv("CROSSTURN_API_KEY", "secret")
        assert main(["launch", "codex", "--url", server.url]) == 3
    assert environment(home)["CROSSTURN_API_KEY"] == "secret"


def test_what_is_not_installed_or_not_there_is_told_in_a_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "codex", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(home))
    assert main(["launch", "codex"]) == 1
    assert "install it with: npm install -g @openai/codex" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["nobody"], ["codex", "--nothing"], ["codex", "behind"]])
def test_a_wrong_command_line_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["launch", *wrong])
    assert refused.value.code == 2


def test_the_last_line_says_how_much_was_reused() -> None:
    before = {"prompt_tokens": 1000, "reused_tokens": 500, "generated_tokens": 10}
    after = {"prompt_tokens": 101_000, "reused_tokens": 99_000, "generated_tokens": 60}
    assert reused(before, after) == (
        "crossturn: the prompts had 100,000 tokens, of which 98,500 (98.5%) were reused and 1,500 read; "
        "50 were written."
    )


@pytest.mark.slow
def test_without_a_server_one_is_started_and_ended(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "claude", "--model", "demo"]) == 3
    told = environment(home)["ANTHROPIC_BASE_URL"]
    assert f"crossturn is ready at {told}/v1 with demo" in capfd.readouterr().err
    assert main(["launch", "claude", "--url", told]) == 1
    assert "no server answers" in capfd.readouterr().err


@pytest.mark.slow
def test_a_server_that_cannot_start_is_told(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "claude", "--model", str(home / "nothing")]) == 1
    assert "the server has ended with status 1" in capfd.readouterr().err
