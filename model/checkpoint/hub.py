"""Finds a checkpoint's directory by name: the demo, a directory, or a repository of the Hugging Face Hub."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from model.checkpoint.config import MODEL_TYPES, read_json
from model.checkpoint.shards import missing_files
from model.errors import CheckpointError, ModelNotFoundError

DEMO = "demo"
_DEMO_DIR = Path(__file__).parent.parent / "demo"
# Weights, tokenizer and templates; no pickles, no code.
_WEIGHTS = "model*.safetensors"
_PATTERNS = ["*.json", _WEIGHTS, "*.jinja", "*.txt", "*.model"]

_log = logging.getLogger("crossturn.model")


def resolve(name: str, *, n_memory_bytes: int | None = None) -> Path:
    """The directory that holds checkpoint ``name``.

    Args:
        name: ``demo``, a path, or ``org/repo``. A repository that is whole in the cache is used without any
            network; one that is not is completed.
        n_memory_bytes: what a model may take here; a larger one is warned of before it is downloaded.

    Raises:
        ModelNotFoundError: it is nowhere, or could only be had from a network that is not there.
    """
    if name == DEMO:
        return _checked(_DEMO_DIR)
    path = Path(os.path.expanduser(name))  # unlike Path.expanduser, keeps what it cannot expand
    if path.is_dir():
        return _checked(path)
    if path.exists():
        raise ModelNotFoundError(f"{name} is a file: name the directory of the checkpoint")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise ModelNotFoundError(f"there is no directory {name}")
    return _from_hub(name, n_memory_bytes)


def cached_models() -> Iterator[tuple[str, Path]]:
    """The repositories in the Hub's cache with a model of this family, and their newest snapshots."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    for repo in sorted(repositories, key=lambda repo: repo.repo_id.lower()):
        newest = max(repo.revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
        if repo.repo_type == "model" and _is_of_the_family(newest.snapshot_path):
            yield repo.repo_id, newest.snapshot_path


def _is_of_the_family(path: Path) -> bool:
    try:
        return read_json(path / "config.json").get("model_type") in MODEL_TYPES
    except CheckpointError:
        return False


def _checked(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(f"{path} holds no checkpoint: config.json is missing")
    return path


def _from_hub(repo: str, n_memory_bytes: int | None) -> Path:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        cached = _cached(repo)
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"there is no directory {repo}, nor can a repository have that name"
        ) from error
    missing = ["everything"] if cached is None else _missing(cached.path)
    if cached is not None and cached.is_complete and not missing:
        return cached.path
    lacking = (
        f"{repo} is not in the Hugging Face cache"
        if cached is None
        else f"{repo} is not complete in the Hugging Face cache, which lacks {', '.join(missing)},"
    )
    if _is_offline():
        if cached is not None and not missing:
            return cached.path  # what lacks is of no use here
        raise ModelNotFoundError(
            f"{lacking} and HF_HUB_OFFLINE is set: unset it once to download, or name a local directory"
        )
    _announce(repo, n_memory_bytes)
    try:
        path = _download(repo)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if cached is not None and not missing:
            _log.warning("%s is used as it is in the cache: the rest cannot be downloaded (%s)", repo, reason)
            return cached.path
        raise ModelNotFoundError(
            f"{lacking} and cannot be downloaded ({reason}): check the name and the network, or name a local "
            "directory"
        ) from error
    if missing := _missing(path):
        raise ModelNotFoundError(
            f"the repository {repo} is no checkpoint of a chat model: it lacks {', '.join(missing)}"
        )
    return path


@dataclass(frozen=True, slots=True)
class _Cached:
    """What of a repository is on this machine.

    Attributes:
        is_complete: as far as its list of files, if that is there too, tells.
    """

    path: Path
    is_complete: bool


def _cached(repo: str) -> _Cached | None:
    from huggingface_hub import snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        return _Cached(Path(snapshot_download(repo, local_files_only=True, allow_patterns=_PATTERNS)), True)
    except IncompleteSnapshotError:
        config = try_to_load_from_cache(repo, "config.json")
        return _Cached(Path(config).parent, False) if isinstance(config, str) else None
    except LocalEntryNotFoundError:
        return None


def _download(repo: str) -> Path:
    """All of ``repo`` that a server needs; what is already there is not fetched again."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(repo, allow_patterns=_PATTERNS, max_workers=4))


def _announce(repo: str, n_memory_bytes: int | None) -> None:
    """Say what a download is of, and warn of one that cannot run here. What cannot be learnt is not said."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        n_bytes = _weight_bytes(repo)
    except (HfHubHTTPError, OSError, ValueError):
        return
    if n_memory_bytes is not None and n_bytes > n_memory_bytes:
        _log.warning(
            "%s has %.1f GiB of weights, and a model may take %.1f GiB here: it will not run. "
            "Ctrl-C ends the download",
            repo,
            n_bytes / 2**30,
            n_memory_bytes / 2**30,
        )
    else:
        _log.info("downloading %s: %.1f GiB of weights", repo, n_bytes / 2**30)


def _weight_bytes(repo: str) -> int:
    """Of all the files of weights in ``repo``, by what the Hub says of them."""
    from huggingface_hub import HfApi

    siblings = HfApi().model_info(repo, files_metadata=True, timeout=10).siblings or []
    weights = [s for s in siblings if fnmatch(s.rfilename, _WEIGHTS)]
    return sum(file.size or 0 for file in weights)


def _missing(path: Path) -> list[str]:
    needed = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    return needed + missing_files(path)


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
