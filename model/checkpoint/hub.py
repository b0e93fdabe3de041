"""Finds a checkpoint's directory by name: the demo, a directory, or a repository of the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path

from model.errors import ModelNotFoundError

DEMO = "demo"
_DEMO_DIR = Path(__file__).parent.parent / "demo"
# Weights, tokenizer and templates; no pickles, no code.
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def resolve(name: str) -> Path:
    """The directory that holds checkpoint ``name``.

    Args:
        name: ``demo``, a path, or ``org/repo``. A cached repository is used without any network.

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
    return _from_hub(name)


def _checked(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(f"{path} holds no checkpoint: config.json is missing")
    return path


def _from_hub(repo: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(repo, local_files_only=True, allow_patterns=_PATTERNS))
        if any(cached.glob("*.safetensors")):
            return _checked(cached)
    except LocalEntryNotFoundError:
        pass  # not cached: the network is asked below
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"there is no directory {repo}, nor can a repository have that name"
        ) from error
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise ModelNotFoundError(
            f"{repo} is not in the Hugging Face cache and HF_HUB_OFFLINE is set: unset it once to download, "
            "or name a local directory"
        )
    try:
        return _checked(Path(snapshot_download(repo, allow_patterns=_PATTERNS, max_workers=4)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelNotFoundError(
            f"{repo} is not in the Hugging Face cache and cannot be downloaded ({reason}): "
            "check the name and the network, or name a local directory"
        ) from error
