"""``crossturn models``, and what a start says while it loads."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from huggingface_hub import constants

import model.backend
import server.launch as server_launch
from model.backend import detect
from model.devices.cpu.device import CpuDevice
from server.cli import main
from server.launch import loading
from tests.fakes import tiny

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache: Path, name: str) -> Path:
    """A model of 0.7 MB, of which a token takes 512 bytes, in the cache."""
    folder = cache / f"models--org--{name}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    path = tiny.write_text(folder / "snapshots" / REVISION)
    (path / "tokenizer.json").write_text("{}")
    return path


def table(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    lines = capsys.readouterr().out.splitlines()[2:]
    return {line.split()[0]: line.split()[1:] for line in lines}


def on_a_machine_of(n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.backend, "detect", lambda: CpuDevice("small", n_bytes, 1))


def test_models_of_the_cache_and_of_directories_are_listed_with_memory_and_context(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cache, "model")
    other = tiny.write_mlx(tmp_path / "other")
    assert main(["models", str(other)]) == 0
    found = table(capsys)
    assert found["demo"] == ["29.7", "MiB", "32768", "fits"]
    assert found["org/model"][2:] == ["4096", "fits"]
    assert found[str(other)] == found["org/model"]


def test_what_does_not_fit_or_cannot_be_loaded_says_so(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = put(cache, "model"), put(cache, "broken")
    (broken / "model.safetensors").unlink()
    on_a_machine_of(8 << 20, monkeypatch)
    assert main(["models", str(tmp_path / "nowhere")]) == 0
    found = table(capsys)
    assert found["demo"][3:] == ["does", "not", "fit:", "21.7", "MiB", "too", "large"]
    assert found["org/broken"][-3:] == ["holds", "no", "model*.safetensors"]
    assert "no directory" in " ".join(found[str(tmp_path / "nowhere")])
    assert whole.exists()


def test_a_start_says_once_what_it_loads(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, logger="crossturn.launch"), loading("org/model") as tell:
        for n in range(1, 4):
            tell(n << 30, 3 << 30)
    assert [record.getMessage() for record in caplog.records] == ["loading org/model: 3.00 GiB of weights"]
    assert capsys.readouterr().err == ""  # no bar where there is no terminal


def test_bars_of_downloads_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(server_launch, "disable_progress_bars", lambda: calls.append("off"))
    server_launch.settle_bars()
    monkeypatch.setattr(server_launch.sys.stderr, "isatty", lambda: True)
    server_launch.settle_bars()
    assert calls == ["off"]
    assert detect().n_memory_bytes > 0
