"""One file of the disk tier: a header, named arrays, a checksum over both.

Layout: ``MAGIC``, the header's length (4 bytes, little endian), the header (JSON), the arrays one after
another, a blake2b digest (16 bytes) of all that comes before. A file appears under its name only when it
is complete and on the disk: written beside it, synced, renamed.
"""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from cache.codec import Buffers

MAGIC = b"crossturn blob 1\n"
TEMPORARY = ".part"
_N_DIGEST = 16


class DamagedBlobError(ValueError):
    """The file is not what was once written; the message says in what way."""


def pack(fingerprint: str, facts: dict[str, Any], buffers: Buffers) -> bytes:
    """The content of a file.

    Args:
        fingerprint: of the model and all else that must agree for the arrays to mean anything.
        facts: whatever else belongs to them, as JSON.
        buffers: the arrays.
    """
    arrays = [(name, np.ascontiguousarray(array)) for name, array in buffers.items()]
    described = [(name, array.dtype.str, array.shape) for name, array in arrays]
    header = json.dumps({"fingerprint": fingerprint, "facts": facts, "arrays": described}).encode()
    body = b"".join(
        [MAGIC, len(header).to_bytes(4, "little"), header, *(array.tobytes() for _, array in arrays)]
    )
    return body + _digest(body)


def unpack(content: bytes) -> tuple[str, dict[str, Any], Buffers]:
    """Fingerprint, facts and arrays of a file; the arrays are read-only views of ``content``.

    Raises:
        DamagedBlobError: it is cut, changed, or no such file at all.
    """
    if not content.startswith(MAGIC):
        raise DamagedBlobError("it does not begin as such a file")
    body = memoryview(content)[:-_N_DIGEST]
    if len(body) < len(MAGIC) + 4 or _digest(body) != content[-_N_DIGEST:]:
        raise DamagedBlobError("its checksum is wrong")
    start = len(MAGIC) + 4
    n_header = int.from_bytes(body[len(MAGIC) : start], "little")
    header = json.loads(bytes(body[start : start + n_header]))
    position = start + n_header
    buffers = {}
    for name, dtype, shape in header["arrays"]:
        n_items = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(body, dtype=dtype, count=n_items, offset=position).reshape(shape)
        buffers[name] = array
        position += array.nbytes
    return header["fingerprint"], header["facts"], buffers


def write(path: Path, content: bytes) -> None:
    """Put ``content`` under ``path``, whole or not at all, whenever the machine stops.

    Raises:
        OSError: it cannot be written; nothing is left under ``path`` that was not there before.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    # Conversations are private: the file is for its owner alone, from its first byte on.
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(body: bytes | memoryview) -> bytes:
    return blake2b(body, digest_size=_N_DIGEST).digest()
