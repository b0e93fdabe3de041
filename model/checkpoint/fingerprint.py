"""Names a model by its content, so that a state is never continued by other weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_PIECE_BYTES = 64 << 20
_HASHED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """What a state depends on besides the token ids.

    Attributes:
        model: 64 bits over every byte of the weights and of ``config.json``.
        adapter: 64 bits over the LoRA adapter's files, 0 without one.
        dtype: what the model computes in.
        kv_bits: bits of a stored key or value; 0 where they are kept in ``dtype``.
        mtp: 64 bits over the files of the multi-token prediction head, on which only its own rows depend; 0
            without one.
    """

    model: int
    adapter: int
    dtype: str
    kv_bits: int = 0
    mtp: int = 0


def hash_files(paths: Iterable[Path]) -> int:
    """64 bits over the names and the bytes of ``paths``, whatever their order.

    Pieces of 64 MiB are hashed side by side (hashlib lets go of the interpreter), then their digests.
    """
    ordered = sorted(paths)
    pieces = [(path, at) for path in ordered for at in range(0, max(path.stat().st_size, 1), _PIECE_BYTES)]
    total = hashlib.blake2b(digest_size=8)
    with ThreadPoolExecutor(_HASHED_AT_ONCE, thread_name_prefix="hash") as pool:
        for (path, at), digest in zip(pieces, pool.map(_hash_piece, pieces), strict=True):
            total.update(f"{path.name}:{at}:".encode() + digest)
    return int.from_bytes(total.digest(), "big")


def _hash_piece(piece: tuple[Path, int]) -> bytes:
    path, at = piece
    with path.open("rb") as file:
        file.seek(at)
        return hashlib.blake2b(file.read(_PIECE_BYTES), digest_size=16).digest()
