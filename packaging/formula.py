"""Writes the locks of what is installed on a Mac and in the container, and a Homebrew formula.

::

    python packaging/formula.py dist/crossturn-0.1.0-py3-none-any.whl

Needs uv and pip; runs on any system. ``macos-arm64.txt`` and ``linux-arm64.txt`` get the versions, each of
which has a wheel there; ``crossturn.rb`` gets the wheels with their hashes. Homebrew builds from source where
it can; MLX's Metal library needs Xcode for that, so this is a formula for a tap, and installs the wheels that
PyPI has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = "3.13"
FORMULA = HERE / "crossturn.rb"


@dataclass(frozen=True)
class Platform:
    """What is installed somewhere.

    Attributes:
        lock: the file of its versions.
        uv: the name by which uv knows it.
        tags: of the wheels that run there, as pip knows them.
        extras: of crossturn.
    """

    lock: Path
    uv: str
    tags: tuple[str, ...]
    extras: tuple[str, ...] = ()


MACOS = Platform(HERE / "macos-arm64.txt", "aarch64-apple-darwin", ("macosx_14_0_arm64",))
# Debian 12 of Dockerfile.macos has glibc 2.36.
LINUX = Platform(
    HERE / "linux-arm64.txt",
    "aarch64-manylinux_2_36",
    (*(f"manylinux_2_{n}_aarch64" for n in range(36, 16, -1)), "manylinux2014_aarch64"),
    ("cpu",),
)


@dataclass(frozen=True)
class Wheel:
    """One file of the lock."""

    name: str
    url: str
    sha256: str


def lock(project: Path, platform: Platform) -> str:
    """The newest versions that the project takes on a platform, each with a wheel."""
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--only-binary",
        ":all:",
    ]
    where = ["--python-platform", platform.uv, "--python-version", PYTHON]
    extras = [word for extra in platform.extras for word in ("--extra", extra)]
    return run([*command, *where, *extras, str(project)], MACOSX_DEPLOYMENT_TARGET="14.0")


def wheels(platform: Platform) -> list[Wheel]:
    """Where PyPI has the files of a platform's lock; an error where it lacks one."""
    where = [word for tag in platform.tags for word in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as nowhere:
        # A resolver here asks for the versions of this Python; the lock was made for another one.
        options = ["--dry-run", "--no-deps", "--ignore-requires-python", "--only-binary=:all:"]
        # --isolated: what this machine has configured, a mirror perhaps, is nobody else's.
        install = [
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "install",
            "--quiet",
            *options,
            "--target",
            nowhere,
        ]
        report = json.loads(
            run(
                [
                    *install,
                    *where,
                    "--python-version",
                    PYTHON,
                    "--report",
                    "-",
                    "--requirement",
                    str(platform.lock),
                ]
            )
        )
    found = [
        Wheel(
            entry["metadata"]["name"],
            entry["download_info"]["url"],
            entry["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for entry in report["install"]
    ]
    return sorted(found, key=lambda wheel: wheel.name.lower())


def formula(wheel: Path, resources: Sequence[Wheel], *, description: str) -> str:
    """The formula of crossturn's own ``wheel`` over the wheels it needs."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    parts = "\n".join(_resource(part) for part in resources)
    return f"""\
# Written by packaging/formula.py: change that, not this.
class Crossturn < Formula
  desc "{description}"
  homepage "https://pypi.org/project/crossturn/"
  url "https://files.pythonhosted.org/packages/py3/c/crossturn/{wheel.name}", using: :nounzip
  sha256 "{digest}"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@{PYTHON}"

{parts}
  def install
    python = Formula["python@{PYTHON}"].opt_bin/"python{PYTHON}"
    system python, "-m", "venv", "--without-pip", libexec
    files = Dir[buildpath/"*.whl"]
    resources.each do |part|
      part.stage {{ files << (buildpath/"parts").install(Dir["*.whl"]).first.to_s }}
    end
    system python, "-m", "pip", "--python=#{{libexec}}/bin/python", "install", "--no-deps", "--no-index",
           "--no-cache-dir", *files
    bin.install_symlink libexec/"bin/crossturn"
    generate_completions_from_executable(bin/"crossturn", "completion", shells: [:bash, :zsh, :fish])
  end

  service do
    run [opt_bin/"crossturn", "serve", "--cache-dir", var/"crossturn"]
    keep_alive successful_exit: false
    log_path var/"log/crossturn.log"
    error_log_path var/"log/crossturn.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/crossturn --version")
  end
end
"""


def _resource(part: Wheel) -> str:
    return f"""\
  resource "{part.name}" do
    url "{part.url}", using: :nounzip
    sha256 "{part.sha256}"
  end
"""


def run(command: Sequence[str], **variables: str) -> str:
    """The output of a command; what it says of errors is shown."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
    return done.stdout


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path, help="crossturn's own")
    wheel = parser.parse_args().wheel
    project = HERE.parent / "pyproject.toml"
    for platform in (MACOS, LINUX):
        platform.lock.write_text(lock(project, platform))
    description = "Chat server for Qwen3.5 hybrid models that never reads a conversation twice"
    found = {platform.lock.name: wheels(platform) for platform in (MACOS, LINUX)}
    FORMULA.write_text(formula(wheel, found[MACOS.lock.name], description=description))
    for name, files in found.items():
        print(f"{name}: {len(files)} wheels")


if __name__ == "__main__":
    main()
