"""Finding a checkpoint by name, without a network wherever none is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from model.checkpoint.hub import resolve
from model.errors import ModelNotFoundError

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, on a machine that says it is offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def put_into_cache(cache: Path, repo: str, names: tuple[str, ...]) -> Path:
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(REVISION)
    for name in names:
        (snapshot / name).write_text("{}")
    return snapshot


def test_demo_is_the_checkpoint_in_the_package() -> None:
    assert (resolve("demo") / "config.json").is_file()


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == tmp_path


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json is missing"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/dir", "./nothing", "nothing", "a/b/c", "~nobody-here/x"])
def test_what_can_only_be_a_path_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no directory"):
        resolve(name)


def test_h04_a_cached_repository_needs_no_network(cache: Path) -> None:
    snapshot = put_into_cache(cache, "org/model", ("config.json", "model.safetensors"))
    assert resolve("org/model") == snapshot


def test_h04_an_uncached_repository_is_refused_offline_with_the_fix(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="unset it once to download, or name a local directory"):
        resolve("org/model")
    assert not list(cache.iterdir())


def test_h04_a_name_no_repository_can_have_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="nor can a repository have that name"):
        resolve("org/--model--")
