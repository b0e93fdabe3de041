"""Measures what bodies of the greatest size cost everybody else: the pause of a stream beside them; memory.

    python bench/large_bodies.py
    python bench/large_bodies.py --mib 8 --only numbers

Starts ``crossturn serve``, and keeps one reply streaming while each body is sent. Prints for each the status,
the time to the answer, the longest time in which the stream beside it had no token, and by how much the peak
of the server's resident memory rose; first of all the same without any such body. A pause beyond a second, a
body that is neither taken nor refused, or a server that dies ends it with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

MAX_PAUSE_S = 1.0
PATHS = {"detokenize": "/detokenize", "ids": "/v1/completions", "input": "/v1/responses"}


def of(n_bytes: int, start: str, piece: str, end: str) -> bytes:
    """``start``, then ``piece`` again and again, then ``end``: about ``n_bytes``."""
    n = (n_bytes - len(start) - len(end)) // len(piece)
    return (start + (piece * n).rstrip(",") + end).encode()


CHAT = '{"messages": [{"role": "user", "content": "Hi"}], '
BODIES: dict[str, Callable[[int], bytes]] = {
    "numbers for messages": lambda n: of(n, '{"messages": [', "0,", "]}"),
    "numbers in metadata": lambda n: of(n, CHAT + '"metadata": {"a": [', "0,", "]}}"),
    "numbers in an unknown field": lambda n: of(n, CHAT + '"x": [', "0,", "]}"),
    "numbers in a schema": lambda n: of(
        n,
        CHAT + '"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [',
        "0,",
        "]}}}}",
    ),
    "numbers behind a mistake": lambda n: of(n, '{"x": [', "0,", "], "),
    "small strings in an unknown field": lambda n: of(n, CHAT + '"x": [', '"ab",', "]}"),
    "small strings as stops": lambda n: of(n, CHAT + '"stop": [', '"ab",', "]}"),
    "keys": lambda n: (
        CHAT.encode() + b'"x": {' + b",".join(b'"%07d":0' % i for i in range((n - 99) // 12)) + b"}}"
    ),
    "empty lists": lambda n: of(n, CHAT + '"x": [', "[],", "]}"),
    "empty objects": lambda n: of(n, CHAT + '"x": [', "{},", "]}"),
    "messages": lambda n: of(n, '{"messages": [', '{"role":"user","content":"a"},', "]}"),
    "parts": lambda n: of(
        n, '{"messages": [{"role": "user", "content": [', '{"type":"text","text":"a"},', "]}]}"
    ),
    "tools": lambda n: of(n, CHAT + '"tools": [', '{"type":"function","function":{"name":"a"}},', "]}"),
    "levels": lambda n: b"[" * n,
    "levels of objects": lambda n: b'{"a":' * (n // 5),
    "ids": lambda n: of(n, '{"model": "demo", "prompt": [', "1,", "]}"),
    "detokenize": lambda n: of(n, '{"tokens": [', "1,", "]}"),
    "input items": lambda n: of(n, '{"input": [', '{"role":"user","content":"a"},', "]}"),
    "commas in one string": lambda n: of(n, '{"messages": [{"role": "user", "content": "', ", ", '"}]}'),
    "escapes in one string": lambda n: of(n, '{"messages": [{"role": "user", "content": "', "\\n", '"}]}'),
    "escapes behind half a character": lambda n: of(
        n, '{"messages": [{"role": "user", "content": "\\ud800', "\\n", '"}]}'
    ),
    "backslashes": lambda n: of(n, '{"messages": [{"role": "user", "content": "', "\\\\", '"}]}'),
    "digits": lambda n: of(n, CHAT + '"seed": 1', "0", "}"),
    "blanks": lambda n: of(n, "", " ", "{}"),
}


class Server:
    """A server process, and one client that has it write all the time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "server.cli", "serve", "--port", "0"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "is ready at" in line, line
        self.url = line.split()[4].removesuffix("/v1")
        self._heard_at = self._asked_at = time.monotonic()
        self._pause_s = 0.0
        self._is_over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        body = {"model": "demo", "prompt": "1 2 3", "stream": True, "max_tokens": 400, "ignore_eos": True}
        with httpx.Client(timeout=300) as http:
            while not self._is_over:
                self._heard_at = time.monotonic()
                with http.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
                    for _ in answer.iter_lines():
                        now = time.monotonic()
                        self._pause_s = max(self._pause_s, now - max(self._heard_at, self._asked_at))
                        self._heard_at = now

    def pause_s(self) -> float:
        """The longest silence of the stream since this was asked last."""
        now = time.monotonic()
        pause_s = max(self._pause_s, now - max(self._heard_at, self._asked_at))
        self._pause_s, self._asked_at = 0.0, now
        return pause_s

    def peak_bytes(self) -> int:
        """The peak of resident memory since this was asked last."""
        process = Path(f"/proc/{self._process.pid}")
        found = re.search(r"^VmHWM:\s+(\d+)", (process / "status").read_text(), re.MULTILINE)
        assert found is not None
        (process / "clear_refs").write_text("5")
        return int(found[1]) * 1024

    def resident_bytes(self) -> int:
        n_pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return n_pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        self._is_over = True
        self._reader.join(timeout=60)
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)


def main() -> int:
    """Measure; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, default=31.9)
    parser.add_argument("--only", default="", help="bodies whose name contains this")
    options = parser.parse_args()
    server, worst_s = Server(), 0.0
    time.sleep(2)
    server.pause_s()
    time.sleep(2)
    print(f"{'without any':34}            pause {server.pause_s():5.2f} s", flush=True)
    for name, make in BODIES.items():
        if options.only not in name:
            continue
        body = make(int(options.mib * 2**20))
        path = next((path for key, path in PATHS.items() if name.startswith(key)), "/v1/chat/completions")
        server.pause_s(), server.peak_bytes()
        before, begun = server.resident_bytes(), time.monotonic()
        answer = httpx.post(
            server.url + path, content=body, headers={"Content-Type": "application/json"}, timeout=300
        )
        took_s, pause_s = time.monotonic() - begun, server.pause_s()
        grown = (server.peak_bytes() - before) / 2**20
        worst_s = max(worst_s, pause_s)
        said = json.dumps(answer.json().get("error", {}).get("message", "taken"))[:70]
        print(
            f"{name:34} {answer.status_code} {took_s:6.2f} s  pause {pause_s:5.2f} s  "
            f"peak {grown:+6.0f} MiB  {said}",
            flush=True,
        )
        if answer.status_code >= 500:
            return 1
    status = server.stop()
    print(f"longest pause {worst_s:.2f} s; exit status {status}")
    return int(worst_s > MAX_PAUSE_S or status != 0)


if __name__ == "__main__":
    sys.exit(main())
