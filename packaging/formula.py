"""Writes the lock of a Mac's installation and the Homebrew formula that is made of it.

::

    python packaging/formula.py dist/crossturn-0.1.0-py3-none-any.whl

Needs uv and pip; runs on any system. ``macos-arm64.txt`` gets the versions, ``crossturn.rb`` their wheels
with hashes. Homebrew builds from source where it can; MLX's Metal library needs Xcode for that, so this is a
formula for a tap, and installs the wheels that PyPI has.
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
MACOS = "14"
LOCK, FORMULA = HERE / "macos-arm64.txt", HERE / "crossturn.rb"


@dataclass(frozen=True)
class Wheel:
    """One file of the lock."""

    name: str
    url: str
    sha256: str


def lock(project: Path) -> str:
    """The newest versions that the project takes on a Mac, each with a wheel."""
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    platform = ["--python-platform", "aarch64-apple-darwin", "--python-version", PYTHON]
    return run([*command, *platform, str(project)], MACOSX_DEPLOYMENT_TARGET=f"{MACOS}.0")


def wheels(locked: Path) -> list[Wheel]:
    """Where PyPI has the files of a lock."""
    platform = ["--platform", f"macosx_{MACOS}_0_arm64", "--python-version", PYTHON]
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
        report = json.loads(run([*install, *platform, "--report", "-", "--requirement", str(locked)]))
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
    """The output of a command."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | variables)
    return done.stdout


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path, help="crossturn's own")
    wheel = parser.parse_args().wheel
    project = HERE.parent / "pyproject.toml"
    LOCK.write_text(lock(project))
    description = "Chat server for Qwen3.5 hybrid models that never reads a conversation twice"
    FORMULA.write_text(formula(wheel, wheels(LOCK), description=description))


if __name__ == "__main__":
    main()
