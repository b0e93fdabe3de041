"""Measures how the code is cut: its files, what one chat turn runs through, and who imports whom.

    scripts/test --co -q && .venv/bin/python scripts/house.py

Counts the product files (``server``, ``model``, ``cache``) and their lines; serves the demo model in this
process, asks it one plain streamed question in each of a few sessions, and counts the files that ran, on all
threads, and how often the event loop and the worker went from one file to another: the median over the
sessions, since the threads do not hand over the same number of events each time. Counts the imports of our
own in the largest junctions, and the places that ask which device this is. With ``-v``, lists the files, and
the pairs of files between which the event loop and the worker change most.
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
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("server", "model", "cache")
N_TURNS = 5
IDLE_S = 0.5
JUNCTIONS = ("model/forward.py", "server/engine/loop.py", "cache/store.py")
ASKS_DEVICE = re.compile(
    r"""(?:kind|backend|device)\w*\s*(?:==|!=|in)\s*[("']+(?:cpu|metal|cuda)|is_available\(\)"""
)


class Turn:
    """The files of ours that each thread entered, in order, while one turn was under way."""

    def __init__(self) -> None:
        self._entered: dict[str, list[str]] = {}

    def enter(self, thread: str, file: str) -> None:
        """Take note that ``thread`` is in ``file`` now."""
        self._entered.setdefault(thread, []).append(file)

    @property
    def files(self) -> set[str]:
        return {file for files in self._entered.values() for file in files}

    def changes(self) -> Counter[tuple[str, str]]:
        """How often the event loop and the worker went from one file to another, by the two files."""
        return Counter(
            (min(pair), max(pair))
            for thread, files in self._entered.items()
            if thread == "MainThread" or "render" in thread
            for pair in itertools.pairwise(files)
            if pair[0] != pair[1]
        )


class Trace:
    """A profile function that writes down one turn at a time: ``sys.setprofile`` calls it for every call and
    return."""

    def __init__(self) -> None:
        self.turn: Turn | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.turn is None or event not in ("call", "return"):
            return
        now_in = frame if event == "call" else frame.f_back
        file = "" if now_in is None else now_in.f_code.co_filename.removeprefix(f"{ROOT}/")
        if file.startswith(ROOMS):
            self.turn.enter(threading.current_thread().name, file)


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
    turns = streamed_turns()
    n_files = [len(turn.files) for turn in turns]
    print(f"files that one streamed chat turn runs through: {statistics.median(n_files):.0f}")
    n_changes = sorted(turn.changes().total() for turn in turns)
    print(
        f"changes of file on the event loop and the worker: {statistics.median(n_changes):.0f}"
        f" ({n_changes[0]} to {n_changes[-1]})"
    )
    if "-v" in sys.argv:
        middle = sorted(turns, key=lambda turn: turn.changes().total())[len(turns) // 2]
        print("\n".join(sorted(middle.files)))
        print("\n".join(f"{n:4} {a} {b}" for (a, b), n in middle.changes().most_common(30)))


def n_own_imports(file: Path) -> int:
    """Modules of ours that ``file`` imports."""
    own = re.compile(rf"^\s*(?:from|import) ((?:{'|'.join(ROOMS)})[\w.]*)", re.M)
    return len(set(own.findall(file.read_text()))) if file.exists() else 0


def streamed_turns() -> list[Turn]:
    """Serve the demo model and ask one streamed question in each of a few sessions, as its second turn: the
    first one imports."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    trace, turns = Trace(), list[Turn]()
    client = threading.Thread(target=_ask, args=(f"http://127.0.0.1:{port}", trace, turns), daemon=True)
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
    return turns


def _ask(url: str, trace: Trace, turns: list[Turn]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the server's own thread waits for it
    try:
        while not _is_up(url):
            time.sleep(0.2)
        for i in range(N_TURNS):
            _stream(url, f"session-{i}", "Hello!")
            trace.turn = Turn()
            turns.append(trace.turn)
            _stream(url, f"session-{i}", "What is the capital of France?")
            trace.turn = None
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _is_up(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/v1/models", timeout=2).status == 200)
    except OSError:
        return False


def _stream(url: str, session: str, text: str) -> None:
    """Ask, and wait until what follows the reply in idle time is done, too."""
    body = {
        "model": "demo",
        "stream": True,
        "max_tokens": 24,
        "enable_thinking": False,
        "messages": [{"role": "user", "content": text}],
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "X-Session-Id": session},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        reply.read()
    time.sleep(IDLE_S)


if __name__ == "__main__":
    main()
