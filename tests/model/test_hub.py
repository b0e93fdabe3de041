"""Finding a checkpoint by name, without a network wherever none is needed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache

import model.checkpoint.hub as hub
from model.checkpoint.hub import cached_models, resolve
from model.checkpoint.shards import INDEX
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


WHOLE = ("config.json", "tokenizer.json", "model.safetensors")


def test_h04_a_cached_repository_needs_no_network(cache: Path) -> None:
    snapshot = put_into_cache(cache, "org/model", WHOLE)
    assert resolve("org/model") == snapshot


SHARDED = ("config.json", "tokenizer.json", INDEX, "model-00001-of-00002.safetensors")
SECOND = "model-00002-of-00002.safetensors"
INCOMPLETE = [
    (SHARDED, SECOND),
    (tuple(name for name in SHARDED if name != INDEX), SECOND),
    (("config.json", "model.safetensors"), "tokenizer.json"),
    (("config.json", "tokenizer.json"), "model.safetensors"),
]


def put_incomplete(cache: Path, names: tuple[str, ...]) -> Path:
    snapshot = put_into_cache(cache, "org/model", names)
    if INDEX in names:
        where = {"a": "model-00001-of-00002.safetensors", "b": SECOND}
        (snapshot / INDEX).write_text(json.dumps({"weight_map": where}))
    return snapshot


@pytest.mark.parametrize(("names", "missing"), INCOMPLETE)
def test_l5_an_incomplete_snapshot_is_refused_offline_with_what_it_lacks(
    names: tuple[str, ...], missing: str, cache: Path
) -> None:
    put_incomplete(cache, names)
    with pytest.raises(ModelNotFoundError, match=f"lacks {missing}, and HF_HUB_OFFLINE is set"):
        resolve("org/model")


@pytest.fixture
def online(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return cache


@pytest.mark.parametrize(("names", "missing"), INCOMPLETE)
def test_l5_an_incomplete_snapshot_is_completed(
    names: tuple[str, ...], missing: str, online: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = put_incomplete(online, names)

    def download(repo: str) -> Path:
        assert repo == "org/model"
        (snapshot / missing).write_text("{}")
        return snapshot

    monkeypatch.setattr(hub, "_download", download)
    assert resolve("org/model") == snapshot


def test_l5_a_snapshot_with_a_link_to_nothing_is_incomplete(cache: Path) -> None:
    snapshot = put_into_cache(cache, "org/model", WHOLE)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(cache / "blobs" / "gone")
    with pytest.raises(ModelNotFoundError, match=r"lacks model\.safetensors"):
        resolve("org/model")


def write_listing(cache: Path, names: tuple[str, ...]) -> None:
    """The list of a repository's files, as the Hub's own client keeps it."""
    entries = {name: TreeCacheEntry(2, "0" * 40, None, None, None) for name in names}
    write_tree_cache(str(cache / "models--org--model"), REVISION, entries)


def test_l5_a_snapshot_that_lacks_nothing_that_is_needed_is_used_offline(cache: Path) -> None:
    snapshot = put_into_cache(cache, "org/model", WHOLE)
    write_listing(cache, (*WHOLE, "vocab.json"))
    assert resolve("org/model") == snapshot


def test_l5_a_snapshot_that_lacks_a_listed_file_is_completed_where_that_can_be(
    online: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = put_into_cache(online, "org/model", WHOLE)
    write_listing(online, (*WHOLE, "chat_template.jinja"))
    asked: list[str] = []

    def download(repo: str) -> Path:
        asked.append(repo)
        if len(asked) > 1:
            raise OSError("no network")
        return snapshot

    monkeypatch.setattr(hub, "_download", download)
    assert [resolve("org/model") for _ in range(2)] == [snapshot] * 2
    assert asked == ["org/model"] * 2


def test_l5_a_repository_that_is_no_chat_model_is_told_so(
    online: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = put_into_cache(online, "org/model", ("config.json",))
    monkeypatch.setattr(hub, "_download", lambda _: snapshot)
    with pytest.raises(ModelNotFoundError, match=r"is no checkpoint .* lacks tokenizer\.json, model\.saf"):
        resolve("org/model")


def test_l5_what_cannot_be_completed_is_refused_with_what_it_lacks(
    online: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into_cache(online, "org/model", ("config.json", "tokenizer.json"))

    def download(repo: str) -> Path:
        raise OSError(f"no route to {repo}")

    monkeypatch.setattr(hub, "_download", download)
    with pytest.raises(
        ModelNotFoundError, match=r"lacks model\.safetensors, and cannot be downloaded \(no route"
    ):
        resolve("org/model")


def test_h04_an_uncached_repository_is_refused_offline_with_the_fix(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="unset it once to download, or name a local directory"):
        resolve("org/model")
    assert not list(cache.iterdir())


def test_h04_a_name_no_repository_can_have_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="nor can a repository have that name"):
        resolve("org/--model--")


@pytest.fixture
def told(online: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged when a repository of 3 GiB is downloaded by a machine that has room for 2 GiB."""
    snapshot = put_into_cache(online, "org/model", WHOLE)
    (snapshot / "model.safetensors").unlink()

    def download(_: str) -> Path:
        caplog.records.append(logging.makeLogRecord({"msg": "the download begins"}))
        (snapshot / "model.safetensors").write_text("{}")
        return snapshot

    monkeypatch.setattr(hub, "_weight_bytes", lambda _: 3 * 2**30)
    monkeypatch.setattr(hub, "_download", download)
    with caplog.at_level(logging.INFO, logger="crossturn.model"):
        resolve("org/model", n_memory_bytes=2 * 2**30)
        (snapshot / "model.safetensors").unlink()
        resolve("org/model", n_memory_bytes=4 * 2**30)
    return [record.getMessage() for record in caplog.records]


def test_a_model_that_cannot_fit_is_warned_of_before_it_is_downloaded(told: list[str]) -> None:
    assert told == [
        "org/model has 3.0 GiB of weights, and a model may take 2.0 GiB here: it will not run. "
        "Ctrl-C ends the download",
        "the download begins",
        "downloading org/model: 3.0 GiB of weights",
        "the download begins",
    ]


def test_cached_models_are_those_of_the_family_by_their_newest_snapshot(cache: Path) -> None:
    for repo, model_type in (("b/model", "qwen3_5"), ("A/model", "qwen3_5_moe"), ("c/other", "llama")):
        snapshot = put_into_cache(cache, repo, WHOLE)
        (snapshot / "config.json").write_text(json.dumps({"model_type": model_type}))
    put_into_cache(cache, "d/broken", ("model.safetensors",))
    assert [name for name, _ in cached_models()] == ["A/model", "b/model"]
    assert all((path / "config.json").is_file() for _, path in cached_models())


def test_without_a_cache_there_are_no_cached_models(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "nowhere"))
    assert list(cached_models()) == []
