"""The files that hold a checkpoint's weights: which they are, and what their headers say is in them.

An index is believed to the letter: its files are read and no others, and of them the tensors that it names.
Without one, every ``model*.safetensors`` is read, and no tensor may stand in two of them.
"""

from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model.checkpoint.config import read_json
from model.errors import CheckpointError

if TYPE_CHECKING:
    import mlx.core as mx

INDEX = "model.safetensors.index.json"

_log = logging.getLogger("crossturn.model")

_MOST_HEADER_BYTES = 100_000_000  # the format's own limit
_NUMBERED = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")
_POINTER = b"version https://git-lfs"
# What the pieces of a tensor are stored as, and MLX has a type for (two of them as bytes).
_DTYPES = frozenset(
    "BOOL U8 U16 U32 U64 I8 I16 I32 I64 F16 BF16 F32 F8_E4M3 F8_E8M0".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file's header says of one tensor.

    Attributes:
        dtype: in the format's own words (``BF16``, ``F8_E4M3``).
        n_bytes: in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Shards:
    """The weights of one checkpoint, not read yet.

    Attributes:
        files: those that are read, in the order of their names.
        tensors: by their names as stored.
        n_unlisted: tensors in those files that the index does not name.
    """

    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    n_unlisted: int = 0

    @property
    def n_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    def load(self) -> dict[str, mx.array]:
        """Every tensor, lazily: bytes are read when something is computed of them.

        Raises:
            CheckpointError: a type that MLX does not have.
        """
        import mlx.core as mx

        for name, tensor in self.tensors.items():
            if tensor.dtype not in _DTYPES:
                raise CheckpointError(f"{name} is stored as {tensor.dtype}, which cannot be read")
        weights: dict[str, mx.array] = {}
        for file in self.files:
            stored = mx.load(str(file))
            assert isinstance(stored, dict)
            weights |= {
                name: w
                for name, w in stored.items()
                if name in self.tensors and self.tensors[name].file == file
            }
        return weights


def read_shards(path: Path) -> Shards:
    """The weights in directory ``path``, by the headers of their files.

    Raises:
        CheckpointError: files or tensors are missing, stand twice, or cannot be read.
    """
    index = path / INDEX
    return _indexed(path, read_json(index)) if index.exists() else _all_in(path)


def missing_files(path: Path) -> list[str]:
    """Files of weights that directory ``path`` ought to hold and does not, as far as can be told."""
    index = path / INDEX
    if index.exists():
        where = read_json(index).get("weight_map")
        named = (
            {file for file in where.values() if isinstance(file, str)} if isinstance(where, dict) else set()
        )
        return sorted(file for file in named if not (path / file).exists())
    names = [file.name for file in path.glob("model*.safetensors") if file.exists()]
    return _missing_numbers(names) if names else ["model.safetensors"]


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file.

    Raises:
        CheckpointError: it is none, or its end is missing.
    """
    try:
        n_file_bytes = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(len(_POINTER))
            if start == _POINTER:
                raise CheckpointError(f"{file} is a pointer of Git LFS, not the weights: run git lfs pull")
            (n_header_bytes,) = struct.unpack("<Q", start[:8])
            if n_header_bytes > min(_MOST_HEADER_BYTES, n_file_bytes - 8):
                raise ValueError("its header does not fit into it")
            stream.seek(8)
            header = json.loads(stream.read(n_header_bytes))
        header.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(
                file, said["dtype"], tuple(said["shape"]), said["data_offsets"][1] - said["data_offsets"][0]
            )
            for name, said in header.items()
        }
        n_needed = max((said["data_offsets"][1] for said in header.values()), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}") from error
    if 8 + n_header_bytes + n_needed > n_file_bytes:
        missing = 8 + n_header_bytes + n_needed - n_file_bytes
        raise CheckpointError(f"{file} is cut short: its last {missing} bytes are missing")
    return tensors


def _indexed(path: Path, index: Mapping[str, object]) -> Shards:
    where = index.get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise CheckpointError(f"{path / INDEX} has no weight_map from tensors to files")
    names = sorted(set(where.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise CheckpointError(f"{path / INDEX} names {outside[0]}, which is not a file beside it")
    if missing := [name for name in names if not (path / name).exists()]:
        raise CheckpointError(_lacking(path, missing, set(names)))
    headers = {name: read_header(path / name) for name in names}
    if absent := sorted(tensor for tensor, name in where.items() if tensor not in headers[name]):
        raise CheckpointError(
            f"{path / INDEX} is stale: {where[absent[0]]} does not hold {absent[0]}"
            + (f" (nor {len(absent) - 1} others where they should be)" if len(absent) > 1 else "")
            + ". Delete the index if the files beside it are complete"
        )
    tensors = {tensor: headers[name][tensor] for tensor, name in where.items()}
    unlisted = sorted({tensor for header in headers.values() for tensor in header} - tensors.keys())
    if unlisted:
        _log.warning(
            "%s is stale: it does not list %d tensors of its files (%s), which are not read",
            INDEX,
            len(unlisted),
            _some(unlisted),
        )
    return Shards(tuple(path / name for name in names), tensors, len(unlisted))


def _lacking(path: Path, missing: list[str], indexed: set[str]) -> str:
    told = f"{path} lacks {', '.join(missing)}"
    others = sorted(file.name for file in path.glob("model*.safetensors") if file.name not in indexed)
    if others:
        told += f". It holds {_some(others)}: if that is the model, {INDEX} is stale and has to be deleted"
    return told


def _all_in(path: Path) -> Shards:
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise CheckpointError(f"{path} holds no model*.safetensors")
    if missing := _missing_numbers([file.name for file in files]):
        raise CheckpointError(f"{path} lacks {', '.join(missing)}")
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise CheckpointError(
                    f"{name} stands both in {tensors[name].file.name} and in {file.name}, and no index says "
                    "which counts: leave one model's files in the directory"
                )
            tensors[name] = tensor
    return Shards(tuple(files), tensors)


def _missing_numbers(names: list[str]) -> list[str]:
    """Of ``model-00001-of-00003.safetensors`` and its like, those that are not there."""
    series = {(match[1], match[3]) for name in names if (match := _NUMBERED.fullmatch(name))}
    wanted = {
        f"{stem}-{i + 1:0{len(count)}}-of-{count}.safetensors"
        for stem, count in series
        for i in range(int(count))
    }
    return sorted(wanted - set(names))


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
