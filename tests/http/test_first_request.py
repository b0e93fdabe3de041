"""The first request finds everything read: no library is imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

COMMAND = (
    sys.executable,
    "-X",
    "importtime",
    "-m",
    "server.cli",
    "serve",
    "--port",
    "0",
    "--log-level",
    "error",
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        },
    }
]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "x",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


@pytest.mark.slow
def test_no_library_is_imported_between_ready_and_the_first_requests(tmp_path: Path) -> None:
    log = tmp_path / "imports"
    with (
        log.open("w") as stderr,
        subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().split()[4]
        before = log.read_text().count("import time:")
        try:
            for fields in (
                {},
                {"stream": True},
                {"tools": TOOLS},
                {"response_format": SCHEMA},
                {"logprobs": True},
            ):
                body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
                assert httpx.post(f"{url}/chat/completions", json=body, timeout=60).status_code == 200
        finally:
            process.terminate()
    late = [
        line.rpartition("|")[2].strip() for line in log.read_text().splitlines() if "import time:" in line
    ]
    assert before > 500
    assert late[before:] == []
