"""Thoughts that clients carry: read back as they were, by their own tenant, and made by nobody else."""

from __future__ import annotations

import base64
import errno
from pathlib import Path

import pytest

from model.errors import ModelError
from server.responses.kept.seal import Seal, seal_key
from server.responses.kept.store import open_shelf
from server.settings import Settings

THOUGHT = "The user wants α, β and \ud83d.\n" * 3


@pytest.mark.parametrize("tenant", [None, "", "a"])
def test_a_blob_is_read_back(tenant: str | None) -> None:
    seal = Seal(b"k" * 32)
    blob = seal.close(THOUGHT, tenant)
    assert seal.open(blob, tenant) == THOUGHT
    assert "user" not in blob


def test_a_blob_of_another_key_or_tenant_or_with_one_bit_changed_is_foreign() -> None:
    seal = Seal(b"k" * 32)
    blob = seal.close(THOUGHT, "a")
    assert Seal(b"j" * 32).open(blob, "a") is None
    assert seal.open(blob, None) is None
    assert seal.open(blob, "b") is None
    raw = base64.urlsafe_b64decode(blob)
    for place in range(len(raw)):
        changed = bytes([*raw[:place], raw[place] ^ 1, *raw[place + 1 :]])
        assert seal.open(base64.urlsafe_b64encode(changed).decode(), "a") is None


@pytest.mark.parametrize("blob", ["", "x", "gAAAAABpY3J5cHRlZA==", "ä", "ct1", "\ud83d", "A" * 100])
def test_what_no_seal_made_is_foreign(blob: str) -> None:
    assert Seal(b"k" * 32).open(blob, None) is None


def test_a_folder_keeps_the_key_and_without_one_each_process_has_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "responses"
    assert seal_key(folder) == seal_key(folder)
    assert (folder / "seal-key").stat().st_mode & 0o077 == 0
    assert seal_key(None) != seal_key(None)


def test_a_key_that_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "seal-key").write_bytes(b"short")
    assert len(seal_key(tmp_path)) == 32
    assert seal_key(tmp_path) == seal_key(tmp_path)


def test_x8_a_key_that_is_there_is_read_from_a_folder_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = seal_key(tmp_path)
    monkeypatch.setattr(Path, "touch", read_only)
    assert seal_key(tmp_path) == key


def test_x8_a_folder_that_takes_no_key_is_one_line_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "touch", read_only)
    with pytest.raises(ModelError, match=r"cannot be used: .*Read-only"):
        open_shelf(Settings(cache_dir=tmp_path))


def read_only(path: Path, *_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system", str(path))
