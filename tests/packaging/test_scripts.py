"""The scripts on a Mac: a stand-in for ``uname``, strict shells, and only the tools that macOS has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
AS_SH = "bash as sh"  # what /bin/sh is on a Mac
SHELLS = [shell for shell in ("dash", "bash", "sh", AS_SH) if shutil.which(shell.split()[0])]
SCRIPTS = ("venv", "serve", "test", "lint")
TOOLS = ("cksum", "dirname", "env", "mv", "cat", "mkdir", "cp", "chmod", "ln")

UNAME = """
case "${1:-}" in
  -s|"") echo Darwin ;;
  -m) echo arm64 ;;
  *) exit 1 ;;
esac
"""
# BSD's grep and mktemp know no long options; neither does anything else in /usr/bin there.
SHORT_ONLY = """
for argument in "$@"; do
  case "$argument" in --*) echo "{name}: unrecognized option $argument" >&2; exit 2 ;; esac
done
exec {path} "$@"
"""
# A Python that makes environments, notes what pip is asked for, and refuses what the real one refuses.
PYTHON = """
import json, os, pathlib, stat, sys
arguments = sys.argv[2:]
said = pathlib.Path(os.environ["STAND_IN_LOG"])
if arguments[0] == "-c":
    code = arguments[1]
    if "platform.machine" in code:
        print(os.environ.get("STAND_IN_MACHINE", "arm64"))
    else:
        exec(code)
elif arguments[0] == "--version":
    print("Python 3.13.1")
elif arguments[:2] == ["-m", "venv"]:
    bin = pathlib.Path(arguments[2]) / "bin"
    bin.mkdir(parents=True)
    for name, first in (("python", sys.argv[1]), ("crossturn", "printf '<%s>' \\"$@\\"; exit")):
        text = pathlib.Path(sys.argv[1]).read_text() if name == "python" else "#!/bin/sh\\n" + first + "\\n"
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
elif arguments[:3] == ["-m", "pip", "install"]:
    said.write_text((said.read_text() if said.exists() else "") + json.dumps(arguments[3:]) + "\\n")
    print("a hundred lines of pip")
    if any("[]" in argument for argument in arguments):
        sys.exit("ERROR: Invalid requirement: '.[]'")
    if os.environ.get("STAND_IN_PIP_FAILS"):
        sys.exit("ERROR: No matching distribution found for mlx")
elif arguments[:2] == ["-m", "pytest"]:
    print("pytest", *arguments[2:])
"""


class Mac:
    """A folder of the repository's scripts, and a PATH with what macOS has."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.tree = folder / "tree"
        self.shell = shutil.which(shell.split()[0])
        if shell == AS_SH:  # bash keeps to POSIX under that name
            (folder / "sh").symlink_to(str(self.shell))
            self.shell = str(folder / "sh")
        self._bin = folder / "bin"
        self._log = folder / "pip.log"
        self._bin.mkdir()
        (self.tree / "scripts").mkdir(parents=True)
        for name in SCRIPTS:
            shutil.copy(ROOT / "scripts" / name, self.tree / "scripts" / name)
        shutil.copy(ROOT / "pyproject.toml", self.tree)
        for name in TOOLS:
            self._write(name, f'exec {shutil.which(name)} "$@"\n')
        for name in ("grep", "sed"):
            self._write(name, SHORT_ONLY.format(name=name, path=shutil.which(name)))
        (self._bin / "sh").symlink_to(str(self.shell))  # what `#!/bin/sh` would be there
        self._write("uname", UNAME)
        self._write("sw_vers", 'echo "${STAND_IN_MACOS:-14.5}"\n')
        self._write("sysctl", 'echo "${STAND_IN_ARM64:-1}"\n')
        (folder / "python.py").write_text(PYTHON)
        self._write("python3", f'exec {sys.executable} {folder / "python.py"} "$0" "$@"\n')

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self._bin), "HOME": str(self.tree), "STAND_IN_LOG": str(self._log)}
        # Scripts that call scripts do so by their first line, which names the system's own shell.
        for name in SCRIPTS:
            file = self.tree / "scripts" / name
            file.write_text(file.read_text().replace("#!/bin/sh\n", f"#!{self.shell}\n"))
        return subprocess.run(
            [str(self.shell), f"scripts/{script}", *arguments],
            cwd=self.tree,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def asked_of_pip(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def _write(self, name: str, body: str) -> None:
        file = self._bin / name
        file.write_text(f"#!{shutil.which('sh')}\n{body}")
        file.chmod(0o755)


@pytest.fixture(params=SHELLS)
def mac(request: pytest.FixtureRequest, tmp_path: Path) -> Mac:
    return Mac(tmp_path, request.param)


def test_m1_a_mac_installs_plain_mlx_without_empty_brackets(mac: Mac) -> None:
    result = mac.run("serve")
    assert (result.returncode, result.stdout) == (0, "<serve>")
    assert mac.asked_of_pip == ['["--disable-pip-version-check", "--editable", "."]']


def test_m1_arguments_reach_the_server_as_they_were_written(mac: Mac) -> None:
    result = mac.run("serve", "--model", "a b", "", "--port=0", "it's")
    assert result.stdout == "<serve><--model><a b><><--port=0><it's>"


def test_m1_the_tests_install_the_developers_extra_and_pass_their_arguments(mac: Mac) -> None:
    result = mac.run("test", "-x", "tests/a b.py")
    assert result.stdout == "pytest --ignore=tests/conformance --ignore=tests/browser -x tests/a b.py\n"
    assert mac.asked_of_pip == ['["--disable-pip-version-check", "--editable", ".[dev]"]']


def test_m1_a_second_start_installs_nothing_and_says_nothing(mac: Mac) -> None:
    mac.run("serve")
    again = mac.run("serve")
    assert (again.returncode, again.stderr) == (0, "")
    assert len(mac.asked_of_pip) == 1


def test_the_first_start_says_what_happens_and_nothing_of_what_pip_prints(mac: Mac) -> None:
    told = mac.run("serve").stderr.splitlines()
    assert told == [
        "crossturn: making .venv with Python 3.13.1",
        "crossturn: installing what it needs into .venv, once: a minute or so",
    ]


def test_an_installation_that_fails_shows_what_pip_said_and_is_tried_again(mac: Mac) -> None:
    failed = mac.run("serve", STAND_IN_PIP_FAILS="1")
    assert failed.returncode == 1
    assert "No matching distribution found for mlx" in failed.stderr
    assert "the installation failed" in failed.stderr.splitlines()[-1]
    assert mac.run("serve").returncode == 0
    assert len(mac.asked_of_pip) == 2


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"STAND_IN_MACHINE": "x86_64"}, "is a Python for Intel, which runs under Rosetta"),
        ({"STAND_IN_ARM64": "0"}, "has no Apple silicon"),
        ({"STAND_IN_MACOS": "13.6.1"}, "MLX needs macOS 14 or newer, this is 13.6.1"),
    ],
)
def test_m8_a_mac_that_cannot_run_mlx_is_told_why_before_anything_is_installed(
    variables: dict[str, str], told: str, mac: Mac
) -> None:
    result = mac.run("serve", **variables)
    assert result.returncode == 1
    assert told in result.stderr
    assert mac.asked_of_pip == []
    assert not (mac.tree / ".venv").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_linux_takes_the_extra_of_its_backend(shell: str, tmp_path: Path) -> None:
    mac = Mac(tmp_path, shell)
    mac._write("uname", "echo Linux\n")
    mac.run("serve")
    mac.run("serve", "--cuda", "--port", "0")
    assert [line.split('"')[-2] for line in mac.asked_of_pip] == [".[cpu]", ".[cuda]"]
    mac.run("test")
    assert mac.asked_of_pip[-1].endswith('".[cpu,dev]"]')


# Options that GNU's tools have and BSD's lack, or read otherwise.
GNU_ONLY = (
    r"\bsed\b[^|;\n]* -(i|r|z)\b",
    r"\breadlink\b[^|;\n]* -(f|e|m)\b",
    r"\bgrep\b[^|;\n]* -[a-zA-Z]*P",
    r"\bdate\b[^|;\n]* (-d|-I)",
    r"\b(stat)\b[^|;\n]* -c",
    r"\b(head|tail)\b[^|;\n]* -n *-",
    r"\bmktemp\b[^|;\n]* -p",
    r"\bcp\b[^|;\n]* -[a-zA-Z]*[tu]\b",
    r"\b(xargs)\b[^|;\n]* -[rd]\b",
    r"\bsort\b[^|;\n]* -[a-zA-Z]*V",
    r"\b(realpath|sha256sum|md5sum|tac|nproc|timeout|shuf)\b",
    r"\b(grep|sed|sort|cp|mv|ln|mkdir|rm|date|find|tar|wc|cut|tr|mktemp)\b[^|;\n]* --[a-z]",
)


@pytest.mark.parametrize("name", [*SCRIPTS, "release", "browser", "conformance"])
def test_no_script_takes_options_that_only_gnus_tools_have(name: str) -> None:
    text = (ROOT / "scripts" / name).read_text()
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert [found[0] for pattern in GNU_ONLY for found in re.finditer(pattern, code)] == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("sed -i s/a/b/ file", True),
        ("x=$(readlink -f file)", True),
        ("grep -qP x", True),
        ("date -d yesterday", True),
        ("sort --unique", True),
        ("grep -qsxF x file", False),
        ("sed -n 1p file | pip install --quiet", False),
    ],
)
def test_options_of_gnus_tools_alone_are_found(line: str, is_found: bool) -> None:
    assert any(re.search(pattern, line) for pattern in GNU_ONLY) is is_found


@pytest.mark.parametrize("name", [*SCRIPTS, "release"])
def test_m1_the_scripts_are_posix_shell(name: str) -> None:
    script = ROOT / "scripts" / name
    assert script.read_text().startswith("#!/bin/sh\n")
    assert os.access(script, os.X_OK)
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    found = subprocess.run([shellcheck, "--shell=sh", str(script)], capture_output=True, text=True)
    assert found.stdout == ""
    assert found.returncode == 0


@pytest.mark.parametrize("name", ["browser", "conformance"])
def test_what_bash_runs_is_without_faults_that_shellcheck_knows(name: str) -> None:
    script = ROOT / "scripts" / name
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    found = subprocess.run([shellcheck, "--shell=bash", str(script)], capture_output=True, text=True)
    assert found.stdout == ""


def test_a_release_needs_a_date_in_the_changelog_and_a_tag_that_is_free(tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git")
    tree = tmp_path / "tree"
    programs = tree / "programs"
    programs.mkdir(parents=True)
    (tree / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "release", tree / "scripts" / "release")
    (tree / "scripts" / "venv").write_text(f"#!/bin/sh\necho {programs}\n")
    (tree / "scripts" / "venv").chmod(0o755)
    # Builds and uploads nothing, and says so.
    (programs / "python").write_text('#!/bin/sh\ncase "$1" in -c) echo 1.2.3 ;; *) echo "$@" >&2 ;; esac\n')
    (programs / "twine").write_text('#!/bin/sh\necho "twine $1" >&2\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    named = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    environment = {**os.environ, **named, "GIT_COMMITTER_EMAIL": "a@b"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)

    def commit(heading: str) -> None:
        (tree / "CHANGELOG.md").write_text(f"# Changelog\n\n## 1.2.3 ({heading})\n")
        run(git, "add", "-A")
        run(git, "commit", "-m", heading)

    run(git, "init")
    commit("unreleased")
    assert "twine check" in run("sh", "scripts/release").stderr
    refused = run("sh", "scripts/release", "--upload")
    assert (refused.returncode, "has no date for 1.2.3" in refused.stderr) == (1, True)
    commit("2026-12-01")
    done = run("sh", "scripts/release", "--upload")
    assert done.returncode == 0, done.stderr
    assert "twine upload" in done.stderr
    assert run(git, "tag", "--list").stdout == "v1.2.3\n"
    again = run("sh", "scripts/release", "--upload")
    assert (again.returncode, "there is a tag v1.2.3 already" in again.stderr) == (1, True)
