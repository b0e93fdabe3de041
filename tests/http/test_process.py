"""The ``crossturn`` command as a process: refusals before loading, signals, restarts."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest

from model.text.tokenizer import TextTokenizer
from server.cli import main
from tests.fakes.openai_types import check_chunk, check_error

COMMAND = (sys.executable, "-m", "server.cli", "serve")
WAIT_S = 60


@contextmanager
def started(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its base URL, once its ready line is there."""
    process = subprocess.Popen(
        [*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("crossturn is ready at http://"), process.communicate()[1]
        yield process, line.split()[4].removesuffix("/v1")
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status of ``process`` and its log."""
    _, log = process.communicate(timeout=WAIT_S)
    return process.returncode, log


def wait_until_closed(url: str) -> None:
    """Return once the server takes no more connections."""
    while True:
        try:
            httpx.get(f"{url}/health")
        except httpx.TransportError:
            return


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one line with which the command refuses to start."""
    assert main(["serve", *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_g05_a_port_in_use_is_one_line_before_anything_loads(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f":{port}" in refused(capsys, "--port", str(port), "--model", "/nowhere")


def test_an_address_of_another_machine_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "203.0.113.1" in refused(capsys, "--host", "203.0.113.1")


def test_a_missing_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/nowhere/at/all" in refused(capsys, "--port", "0", "--model", "/nowhere/at/all")


def test_a_directory_without_a_checkpoint_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert str(tmp_path) in refused(capsys, "--port", "0", "--model", str(tmp_path))


@pytest.mark.parametrize(
    "options",
    [
        ["--colour"],
        ["--memory-budget", "lots"],
        ["--context-length", "0"],
        ["--stream-interval-seconds", "-1"],
        ["--stream-interval-seconds", "inf"],
        ["--port", "99999"],
        ["--adapter-path", "/nowhere"],
        ["--draft-model", "x"],
    ],
)
def test_h06_options_that_are_wrong_or_unknown_are_refused(
    options: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["serve", *options])
    assert exit_info.value.code == 2
    assert options[0] in capsys.readouterr().err


@pytest.mark.slow
def test_g05_a_terminated_server_exits_with_0_and_frees_its_port() -> None:
    with started("--port", "0") as (process, url):
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "")
    port = url.rpartition(":")[2]
    with started("--port", port) as (again, url):
        assert httpx.get(f"{url}/v1/models").status_code == 200
        again.send_signal(signal.SIGINT)
        assert ended(again)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("drain_s", "n_signals"), [("0.2", 1), ("600", 2)])
def test_g06_a_stream_that_does_not_end_is_ended_with_an_error_frame(
    drain_s: str, n_signals: int, tokenizer: TextTokenizer
) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "n": 4,
        "logit_bias": dict.fromkeys(map(str, tokenizer.eos_ids), -100),
    }
    with (
        started("--port", "0", "--drain-seconds", drain_s) as (process, url),
        httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=WAIT_S) as response,
    ):
        lines = response.iter_lines()
        # MLX compiles its first kernels through system(), which has SIGINT ignored as long as it runs.
        begun = [json.loads(line[6:]) for line in islice(lines, 400) if line.startswith("data: ")]
        assert len(begun) >= 200
        for _ in range(n_signals):
            process.send_signal(signal.SIGINT)
            wait_until_closed(url)  # two signals at once would be one
        frames = [line.removeprefix("data: ") for line in lines if line]
        *rest, error, done = frames
        assert "shutting down" in check_error(json.loads(error)).message
        assert done == "[DONE]"
        for chunk in (*begun, *map(json.loads, rest)):
            check_chunk(chunk)
        status, log = ended(process)
    assert status == 0
    assert "Traceback" not in log


@pytest.mark.slow
def test_x9_a_hangup_ends_as_a_termination_does_and_readiness_ends_first(tmp_path: Path) -> None:
    ask = {"messages": [{"role": "user", "content": "What is my name? " * 60}], "max_tokens": 8}
    options = ("--port", "0", "--cache-dir", str(tmp_path / "cache"), "--unready-seconds")
    with started(*options, "600") as (process, url):
        assert httpx.get(f"{url}/ready").json() == {"status": "ready"}
        assert httpx.post(f"{url}/v1/chat/completions", json=ask, timeout=WAIT_S).status_code == 200
        process.send_signal(signal.SIGHUP)
        while httpx.get(f"{url}/ready").status_code == 200:
            pass
        # It still serves: a proxy may not have looked yet.
        assert httpx.post(f"{url}/v1/chat/completions", json=ask, timeout=WAIT_S).status_code == 200
        process.send_signal(signal.SIGHUP)  # the second ends at once
        status, log = ended(process)
        assert (status, log.count("Traceback")) == (0, 0)
    with started(*options, "0") as (process, url):
        body = httpx.post(f"{url}/v1/chat/completions", json=ask, timeout=WAIT_S).json()
        assert body["crossturn"]["reused_tokens"] > 0  # saved at the end, whatever signal it was
        process.send_signal(signal.SIGHUP)
        assert ended(process)[0] == 0
