"""One signal ends the server, whatever it is busy with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

WATCH = """
import os, threading
from server.process import SignalWatch

watch, received = SignalWatch(), []
came = threading.Event()
with watch.running():
    watch.handler = lambda signal: (received.append(signal.name), came.set())
    {act}
    assert came.wait(20)
    print(*received, flush=True)
    came.clear()
    os.kill(os.getpid(), {number})
    assert came.wait(20)
print(*received)
"""
END = """
import os
from server.process import SignalWatch

with SignalWatch().running():
    {act}
    while True:
        pass
"""
# A compiler that MLX has started, as far as signals are concerned.
COMPILES = "os.system('kill -{number} $PPID')"
IDLES = "os.kill(os.getpid(), {number})"


def run(script: str, act: str, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    text = script.format(act=act.format(number=int(number)), number=int(number))
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("act", [COMPILES, IDLES])
def test_no_signal_is_lost(act: str, number: signal.Signals) -> None:
    ended = run(WATCH, act, number)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [number.name, f"{number.name} {number.name}"]
    assert ended.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("act", [COMPILES, IDLES])
def test_a_signal_before_the_server_is_ready_ends_it_at_once(act: str, number: signal.Signals) -> None:
    ended = run(END, act, number)
    assert (ended.returncode, ended.stderr) == (128 + number, "")


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_nothing_starts_a_thread_before_signals_are_watched() -> None:
    """A thread of NumPy's BLAS, begun at its import, would take a SIGTERM and end the process with it."""
    script = "import os, server.cli, server.commands.serve; print(len(os.listdir('/proc/self/task')))"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "1\n"
