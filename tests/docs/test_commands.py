"""Every command in README and ``docs/`` is tried: ours are parsed, requests sent, links looked for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.cli import parser
from tests.fakes.live_server import Live, live_demo

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
ELSEWHERE = {
    "pip",
    "pipx",
    "uvx",
    "uv",
    "brew",
    "docker",
    "git",
    "npm",
    "python",
    "python3",
    "export",
    "caffeinate",
    "eval",
    "printf",
}
"""Programs of others; what they do is not ours to try."""


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of ``page`` in one of ``languages``."""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.M | re.S):
        if language in languages:
            yield block


def commands() -> list[tuple[str, str]]:
    """Every command, with the page it is on; lines that go on are joined."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh", "bash", "console"):
            whole = re.sub(r"\\\n\s*", "", block)
            line, is_open = "", False
            for part in whole.splitlines():
                line = f"{line}\n{part}" if is_open else part
                is_open = line.count("'") % 2 == 1
                if not is_open and line.strip() and not line.lstrip().startswith("#"):
                    found.append((page.name, line.strip()))
    return found


COMMANDS = commands()


def words_of(line: str) -> list[str]:
    """The words of a command, without assignments in front and without what it is piped into."""
    words = shlex.split(line, comments=True)
    words = words[: next((i for i, word in enumerate(words) if word in ("|", "&&", ">", "&")), len(words))]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    return words


def of(*programs: str) -> list[Any]:
    chosen = [(page, line) for page, line in COMMANDS if words_of(line)[:1] and words_of(line)[0] in programs]
    return [pytest.param(line, id=f"{page}: {line[:60]}") for page, line in chosen]


def test_every_program_in_the_pages_is_known() -> None:
    known = {"crossturn", "curl"} | ELSEWHERE
    unknown = [
        (page, line)
        for page, line in COMMANDS
        if not re.match(r"\w+=\$\(", line)
        and (words := words_of(line))
        and words[0] not in known
        and not (ROOT / words[0]).is_file()
    ]
    assert unknown == []


@pytest.mark.parametrize("line", of("crossturn", "scripts/serve"))
def test_our_own_commands_are_understood(line: str, tmp_path: Path) -> None:
    words = words_of(line)[1:]
    if line.startswith("scripts/serve"):
        words = ["serve", *(word for word in words if word != "--cuda")]
    if "--help" in words:
        return
    for i, word in enumerate(words):  # folders and files that the options want to be there
        if word in ("--preload", "--adapter-path", "--mtp-path", "--config", "--api-key-file"):
            path = tmp_path / f"file-{i}"
            path.mkdir() if word in ("--adapter-path", "--mtp-path") else path.write_text("")
            words[i + 1] = str(path)
    chosen = parser().parse_args(words)
    assert chosen.command is not None


@pytest.mark.parametrize("line", of("python", "python3"))
def test_scripts_that_are_run_by_python_are_there(line: str) -> None:
    words = words_of(line)
    if words[1] not in ("-m", "-c"):
        assert (ROOT / words[1]).is_file(), words[1]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_demo() as running:
        yield running


@pytest.mark.parametrize("line", of("curl"))
def test_requests_in_the_pages_are_answered(line: str, server: Live) -> None:
    words = words_of(line)[1:]
    url = next(word for word in words if word.startswith("http"))
    headers = dict(words[i + 1].split(": ", 1) for i, word in enumerate(words) if word in ("-H", "--header"))
    data = next((words[i + 1] for i, word in enumerate(words) if word in ("-d", "--data")), None)
    base = server.url.removesuffix("/v1")
    answer = httpx.request(
        "GET" if data is None else "POST",
        re.sub(r"^https?://[^/]+", base, url),
        content=data,
        headers=headers,
        timeout=60,
    )
    assert answer.is_success, answer.text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_python_in_the_readme_runs(server: Live) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    exec(code.replace("http://127.0.0.1:8000/v1", server.url), {})
