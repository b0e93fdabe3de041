"""A cache folder on a bad day: full, out of file descriptors, or with things in it that are no files."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from cache.disk import blob
from cache.disk.blob import DamagedBlobError
from cache.disk.files import claim
from cache.disk.tier import DiskTier
from cache.planner import ExactAppend, SlotKey
from tests.fakes.cache_kit import OTHER, SLOT
from tests.fakes.disk_kit import ask, open_store, open_tier, settle, words

Log = pytest.LogCaptureFixture


def filled(folder: Path, *slots: SlotKey) -> None:
    store = open_store(folder)
    for seed, slot in enumerate(slots or (SLOT,)):
        ask(store, slot, words(2000, seed=seed))
    store.disk.close()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def exhausted(path: Path) -> bytes:
    raise OSError(errno.EMFILE, "Too many open files", str(path))


def test_x8_without_file_descriptors_nothing_is_deleted_and_it_is_told_once(
    tmp_path: Path, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, SLOT, OTHER)
    before = names(tmp_path)
    store = open_store(tmp_path)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(blob, "read", exhausted)
        for seed, slot in enumerate((SLOT, OTHER)):
            store.recall(slot, words(2100, seed=seed))
            assert store.plan(slot, words(2100, seed=seed)).plan.reusable_len == 0
            assert store.fork(slot, SlotKey.for_session(None, "copy")) == 0
    assert len(caplog.records) == 1
    assert names(tmp_path) == before
    for seed, slot in enumerate((SLOT, OTHER)):
        assert ask(store, slot, words(2100, seed=seed)).plan.mode == ExactAppend()
    store.disk.close()


def test_x8_a_start_without_file_descriptors_deletes_nothing_and_is_told_once(
    tmp_path: Path, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, SLOT, OTHER)
    before = names(tmp_path)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(blob, "read", exhausted)
        open_tier(tmp_path).close()
    assert len(caplog.records) == 1
    assert names(tmp_path) == before
    store = open_store(tmp_path)
    assert ask(store, SLOT, words(2100)).plan.mode == ExactAppend()
    store.disk.close()


def test_x8_files_that_were_swapped_are_not_believed(tmp_path: Path, caplog: Log) -> None:
    filled(tmp_path)
    first, second, *_ = sorted((tmp_path / "content").glob("*.rows"))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    store = open_store(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert ask(store, SLOT, words(2100)).plan.reusable_len == 0
    assert [record for record in caplog.records if "another name" in record.getMessage()]
    assert len(caplog.records) == 1
    store.disk.close()


def test_x8_a_name_is_part_of_what_the_digest_covers() -> None:
    content = blob.pack("one", "model", {"a": 1}, {"ids": words(10)})
    assert blob.unpack("one", content)[0] == "model"
    for changed in (
        content.replace(b'"one"', b'"two"'),
        content.replace(b"model", b"medal"),
        content[:-1] + bytes([content[-1] ^ 1]),
        content[:-4],
        b"",
        b"crossturn blob 1\n",
    ):
        with pytest.raises(DamagedBlobError):
            blob.unpack("one", changed)
        with pytest.raises(DamagedBlobError):
            blob.unpack("two", changed)


def test_x8_a_disk_that_is_full_leaves_no_unfinished_file_and_counts_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(tmp_path)
    assert isinstance(store.disk, DiskTier)
    ask(store, SLOT, words(1000))
    settle(store)
    before, n_before = names(tmp_path), store.disk.n_bytes
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        ask(store, SLOT, words(3000))
        settle(store)
        assert names(tmp_path) == before
        assert (store.disk.n_bytes, store.disk.n_conversations) == (n_before, 1)
    ask(store, OTHER, words(100, seed=5))
    store.disk.close()
    store = open_store(tmp_path)
    assert ask(store, SLOT, words(3100)).plan.reusable_len == 1000
    assert ask(store, OTHER, words(120, seed=5)).plan.reusable_len == 100
    store.disk.close()


def test_x8_a_file_that_could_not_be_written_is_not_counted_though_its_conversation_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, __: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(tmp_path)
    assert isinstance(store.disk, DiskTier)
    monkeypatch.setattr(blob, "write", full)
    ask(store, SLOT, words(2000))
    store.disk.step()
    running = store.take(store.plan(SLOT, words(2100)))
    store.disk.close()
    assert store.disk.n_bytes == 0
    store.drop(running)


def test_x8_what_could_not_be_written_is_written_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, __: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(blob, "write", full)
        ask(store, SLOT, words(2000))
        settle(store)
    ask(store, SLOT, words(2100))
    store.disk.close()
    store = open_store(tmp_path)
    assert ask(store, SLOT, words(2200)).plan.mode == ExactAppend()
    store.disk.close()


def test_x8_a_fault_in_making_a_file_does_not_end_the_thread_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> bytes:
        raise MemoryError

    store = open_store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(blob, "pack", out_of_memory)
        ask(store, SLOT, words(1000))
        settle(store)
    ask(store, SLOT, words(1100))
    settle(store)
    assert isinstance(store.disk, DiskTier)
    assert store.disk.n_conversations == 1
    store.disk.close()


@pytest.mark.parametrize("kind", ["folder", "fifo", "broken link", "link to a folder"])
@pytest.mark.parametrize("place", ["conversations", "content"])
def test_x8_what_stands_in_the_place_of_a_file_is_one_log_line(
    tmp_path: Path, caplog: Log, kind: str, place: str
) -> None:
    filled(tmp_path)
    suffixes = ("", blob.TEMPORARY) if place == "conversations" else (".rows", f".state{blob.TEMPORARY}")
    for suffix in suffixes:
        odd = tmp_path / place / f"{'0' * 32}{suffix}"
        if kind == "folder":
            odd.mkdir()
        elif kind == "fifo":
            os.mkfifo(odd)
        else:
            odd.symlink_to(tmp_path if kind == "link to a folder" else tmp_path / "nowhere")
        with caplog.at_level(logging.WARNING):
            store = open_store(tmp_path)
        assert ask(store, SLOT, words(2100)).plan.reusable_len >= 2000
        assert len(caplog.records) == 1
        assert odd.name in caplog.text
        store.disk.close()
        assert os.path.lexists(odd)
        (odd.rmdir if kind == "folder" else odd.unlink)()
        caplog.clear()


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_x8_what_comes_into_the_place_of_a_content_file_while_serving_is_damage(
    tmp_path: Path, caplog: Log, kind: str
) -> None:
    filled(tmp_path)
    store = open_store(tmp_path)
    path = next((tmp_path / "content").glob("*.rows"))
    path.unlink()
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with caplog.at_level(logging.WARNING):
        assert ask(store, SLOT, words(2100)).plan.reusable_len == 0
    assert any("no file" in record.getMessage() for record in caplog.records)
    store.disk.close()


def test_x8_whatever_is_deleted_in_it_no_second_server_writes_where_the_first_does(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    for path in tmp_path.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    second = claim(tmp_path)
    assert second.folder == tmp_path / "peer-1"
    second.close()
    tier.close()
    assert claim(tmp_path).folder == tmp_path


@pytest.mark.parametrize("name", ["", "."])
def test_x8_an_empty_folder_name_is_not_the_current_folder(name: str) -> None:
    with pytest.raises(OSError, match="current folder"):
        claim(Path(name))
