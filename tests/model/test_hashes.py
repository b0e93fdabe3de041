"""A hash is remembered as long as its files are the same, and not a moment longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import model.checkpoint.hashes as hashes
from model.checkpoint.fingerprint import hash_files
from model.checkpoint.hashes import HashMemory
from model.checkpoint.load import load
from tests.fakes import tiny


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("a", "b")]
    for file in made:
        file.write_bytes(file.name.encode() * 100)
    return made


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """The calls that really read the files."""
    calls: list[list[Path]] = []

    def count(paths: list[Path]) -> int:
        calls.append(paths)
        return hash_files(paths)

    monkeypatch.setattr(hashes, "hash_files", count)
    return calls


def test_m7_unchanged_files_are_read_once(
    files: list[Path], counted: list[list[Path]], tmp_path: Path
) -> None:
    memory = tmp_path / "new" / "hashes.json"
    found = [HashMemory(memory).hash_files(order) for order in (files, files[::-1], files)]
    assert found == [hash_files(files)] * 3
    assert len(counted) == 1


def rewrite(file: Path) -> None:
    """Another content of the same size, with the time of the old one."""
    before = file.stat()
    file.write_bytes(b"x" * before.st_size)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(file: Path) -> None:
    """The same content under another inode."""
    part = file.with_name("part")
    part.write_bytes(file.read_bytes())
    part.replace(file)


@pytest.mark.parametrize("change", [rewrite, replace, lambda file: os.utime(file, ns=(1, 1))])
def test_m7_a_file_that_may_have_changed_is_read_again(
    change: object, files: list[Path], counted: list[list[Path]], tmp_path: Path
) -> None:
    memory = HashMemory(tmp_path / "hashes.json")
    memory.hash_files(files)
    assert callable(change)
    change(files[1])
    assert memory.hash_files(files) == hash_files(files)
    assert len(counted) == 2


def test_m7_a_file_that_changes_while_it_is_read_is_not_remembered(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory = HashMemory(tmp_path / "hashes.json")

    def change_meanwhile(paths: list[Path]) -> int:
        result = hash_files(paths)
        rewrite(files[0])
        return result

    with monkeypatch.context() as patch:
        patch.setattr(hashes, "hash_files", change_meanwhile)
        memory.hash_files(files)
    assert memory.hash_files(files) == hash_files(files)


@pytest.mark.parametrize("content", ["{", "[]", '{"a": "no number"}', '{"a": 7}'])
def test_m7_a_memory_that_cannot_be_read_costs_only_time(
    content: str, files: list[Path], counted: list[list[Path]], tmp_path: Path
) -> None:
    file = tmp_path / "hashes.json"
    file.write_text(content)
    assert [HashMemory(file).hash_files(files) for _ in range(2)] == [hash_files(files)] * 2
    assert len(counted) == 1


def test_m7_a_memory_that_cannot_be_written_costs_only_time(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "no folder").write_text("")
    assert HashMemory(tmp_path / "no folder" / "hashes.json").hash_files(files) == hash_files(files)


def test_m7_the_memory_stays_small(files: list[Path], counted: list[list[Path]], tmp_path: Path) -> None:
    memory = tmp_path / "hashes.json"
    for n in range(hashes._MOST_ENTRIES + 10):
        os.utime(files[0], ns=(n, n))
        HashMemory(memory).hash_files(files)
    assert memory.read_text().count(":") == hashes._MOST_ENTRIES
    HashMemory(memory).hash_files(files)
    assert len(counted) == hashes._MOST_ENTRIES + 10


def test_m7_a_second_load_does_not_hash_the_weights_again(counted: list[list[Path]], tmp_path: Path) -> None:
    path = tiny.write_text(tmp_path / "model")
    first, second = (load(path, hashes_file=tmp_path / "hashes.json").fingerprint for _ in range(2))
    assert first == second == load(path).fingerprint
    assert len(counted) == 1
