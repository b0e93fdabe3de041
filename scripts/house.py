"""Measures how the code is cut: its files, what one chat turn runs through, and who imports whom.

    scripts/test --co -q && .venv/bin/python scripts/house.py

Counts the product files (``server``, ``model``, ``cache``) and their lines; serves the demo model in this
process, asks it one plain streamed question, and counts the files that ran, on all threads, and how often the
event loop and the worker went from one file to another; counts the imports of our own in the largest
junctions, and the places that ask which device this is.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("server", "model", "cache")
JUNCTIONS = ("model/forward.py", "server/engine/loop.py", "cache/store.py")
ASKS_DEVICE = re.compile(
    r"""(?:kind|backend|device)\w*\s*(?:==|!=|in)\s*[("']+(?:cpu|metal|cuda)|is_available\(\)"""
)


class Trace:
    """The files of ours that each thread enters, in order, while it is armed."""

    def __init__(self) -> None:
        self.armed = False
        self._entered: dict[str, list[str]] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """A profile function: ``sys.setprofile`` calls it for every call and return."""
        if not self.armed or event not in ("call", "return"):
            return
        now_in = frame if event == "call" else frame.f_back
        file = "" if now_in is None else now_in.f_code.co_filename
        if file.startswith(str(ROOT)) and file[len(str(ROOT)) + 1 :].startswith(ROOMS):
            self._entered.setdefault(threading.current_thread().name, []).append(file[len(str(ROOT)) + 1 :])

    @property
    def files(self) -> set[str]:
        return {file for files in self._entered.values() for file in files}

    def n_changes(self, is_counted: Callable[[str], bool]) -> int:
        """How often the threads whose names are counted went from one file to another."""
        lists = [files for name, files in self._entered.items() if is_counted(name)]
        return sum(a != b for files in lists for a, b in itertools.pairwise(files))


def main() -> None:
    """Print the table."""
    files = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
    lines = [len(file.read_text().splitlines()) for file in files]
    print(
        f"product files: {len(files)}, median {statistics.median(lines):.0f} lines,"
        f" of at most 40 lines: {sum(n <= 40 for n in lines)}"
    )
    for name in JUNCTIONS:
        print(f"imports of our own by {name}: {n_own_imports(ROOT / name)}")
    asking = [
        f"{file.relative_to(ROOT)}:{i}"
        for file in files
        for i, line in enumerate(file.read_text().splitlines(), 1)
        if ASKS_DEVICE.search(line)
    ]
    print(f"lines that ask which device this is: {len(asking)} {asking if len(asking) < 4 else ''}")
    trace = trace_of_a_turn()
    print(f"files that one streamed chat turn runs through: {len(trace.files)}")
    print(
        "changes of file on the event loop and the worker: "
        f"{trace.n_changes(lambda name: name == 'MainThread' or 'render' in name)}"
    )
    if "-v" in sys.argv:
        print("\n".join(sorted(trace.files)))


def n_own_imports(file: Path) -> int:
    """Modules of ours that ``file`` imports."""
    own = re.compile(rf"^\s*(?:from|import) ((?:{'|'.join(ROOMS)})[\w.]*)", re.M)
    return len(set(own.findall(file.read_text()))) if file.exists() else 0


def trace_of_a_turn() -> Trace:
    """Serve the demo model and ask one streamed question; the second, since the first imports."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    trace = Trace()
    client = threading.Thread(target=_ask, args=(f"http://127.0.0.1:{port}", trace), daemon=True)
    threading.setprofile(trace)
    sys.setprofile(trace)
    client.start()
    (command,) = entry_points(group="console_scripts", name="crossturn")
    try:
        command.load()(["serve", "--port", str(port), "--log-level", "error"])
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    client.join()
    return trace


def _ask(url: str, trace: Trace) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the server's own thread waits for it
    try:
        while not _is_up(url):
            time.sleep(0.2)
        _stream(url, "Hello!")
        trace.armed = True
        _stream(url, "What is the capital of France?")
        trace.armed = False
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _is_up(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/v1/models", timeout=2).status == 200)
    except OSError:
        return False


def _stream(url: str, text: str) -> None:
    body = {
        "model": "demo",
        "stream": True,
        "max_tokens": 24,
        "enable_thinking": False,
        "messages": [{"role": "user", "content": text}],
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        reply.read()


if __name__ == "__main__":
    main()
