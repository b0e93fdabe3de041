"""One file of the cache folder: named arrays and facts, as safetensors, under a digest.

The header's metadata hold the file's own name, the fingerprint of what wrote it, the facts, and a blake2b
digest over all of these and the arrays. A file appears under its name only when it is complete and on the
disk: written beside it, synced, renamed.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from cache.state import Buffers

TEMPORARY = ".part"
_FIELDS = {"name", "fingerprint", "facts", "digest"}


class DamagedBlobError(ValueError):
    """The file is not what was once written; the message says in what way."""


def pack(name: str, fingerprint: str, facts: dict[str, Any], buffers: Buffers) -> bytes:
    """The content of a file.

    Args:
        name: under which it will be found: a file that was put in the place of another is not believed.
        fingerprint: of the model and all else that must agree for the arrays to mean anything.
        facts: whatever else belongs to them, as JSON.
        buffers: the arrays.
    """
    arrays = {key: np.ascontiguousarray(array) for key, array in buffers.items()}
    metadata = {"name": name, "fingerprint": fingerprint, "facts": json.dumps(facts)}
    metadata["digest"] = _digest(metadata, arrays)
    return bytes(safetensors.numpy.save(arrays, metadata=metadata))


def unpack(name: str, content: bytes) -> tuple[str, dict[str, Any], Buffers]:
    """Fingerprint, facts and arrays of the file ``name``.

    Raises:
        DamagedBlobError: it is cut, changed, another file, or no such file at all.
    """
    try:
        arrays = safetensors.numpy.load(content)
        n_header = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + n_header])["__metadata__"]
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedBlobError("it is cut, or no such file") from error
    if set(metadata) != _FIELDS or metadata["digest"] != _digest(metadata, arrays):
        raise DamagedBlobError("its digest is wrong")
    if metadata["name"] != name:
        raise DamagedBlobError("it has another name inside")
    return metadata["fingerprint"], json.loads(metadata["facts"]), arrays


def read(path: Path) -> bytes:
    """The content of the file at ``path``.

    Raises:
        DamagedBlobError: nothing is there, or something that is no file.
        OSError: it cannot be read now, which says nothing about what it holds.
    """
    try:
        # Without waiting: opening a FIFO would block until somebody writes to it.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise DamagedBlobError("it is missing") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise DamagedBlobError("it is no file")
    with open(number, "rb") as file:
        return file.read()


def write(path: Path, content: bytes) -> None:
    """Put ``content`` under ``path``, whole or not at all, whenever the machine stops.

    Raises:
        OSError: it cannot be written; nothing is left that was not there before.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        # Conversations are private: the file is for its owner alone, from its first byte on.
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(metadata: dict[str, str], arrays: Buffers) -> str:
    digest = blake2b(digest_size=16)
    described = [(key, array.dtype.str, array.shape) for key, array in sorted(arrays.items())]
    fields = [metadata[field] for field in ("name", "fingerprint", "facts")]
    digest.update(json.dumps([*fields, described]).encode())
    for _, array in sorted(arrays.items()):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
