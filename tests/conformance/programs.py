"""Runs other people's programs: in an empty home, with an emptied environment, and with an end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

NODE = Path(__file__).parent / "node"
BIN = NODE / "node_modules" / ".bin"
TIMEOUT_S = 120.0

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not BIN.is_dir(), reason="scripts/conformance installs it where npm is"
)


def run(
    command: Sequence[str | Path], home: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` to its end in a folder below ``home``, which is all that it knows of this machine."""
    work = home / "work"
    work.mkdir(exist_ok=True)
    node = shutil.which("node")
    path = os.pathsep.join(["/usr/bin", "/bin", *([str(Path(node).parent)] if node else [])])
    return subprocess.run(
        [str(part) for part in command],
        cwd=work,
        env={"HOME": str(home), "PATH": path, "NO_COLOR": "1", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
