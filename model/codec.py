"""A state's arrays, as numpy can write them to a file, and back (``cache.codec.StateCodec``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from model.state import Checkpoint, KvRows, Recurrent, State, capacity_for

Arrays = Mapping[str, npt.NDArray[np.generic]]


class StateCodec:
    """Knows the shapes of one model's states from an empty one.

    Args:
        new_state: makes an empty state.
    """

    def __init__(self, new_state: Callable[[], State]) -> None:
        self._empty = new_state()
        self.layout = _describe(self._empty)

    def rows(self, state: State, start: int, end: int) -> Arrays:
        """The stored rows of tokens [start, end): one array for each buffer of each layer."""
        assert 0 <= start < end <= state.length
        cut = {
            f"kv.{i}.{j}": mx.contiguous(buffer[:, :, start:end])
            for i, rows in enumerate(state.kv)
            for j, buffer in enumerate(rows.arrays)
        }
        return _to_numpy(cut)

    def recurrent(self, checkpoint: Checkpoint) -> Arrays:
        """The windows and the matrices of all GDN layers."""
        arrays = {}
        for i, layer in enumerate(checkpoint.layers):
            arrays[f"gdn.{i}.window"] = layer.window
            arrays[f"gdn.{i}.matrix"] = layer.matrix
        return _to_numpy(arrays)

    def checkpoint(self, length: int, recurrent: Arrays) -> Checkpoint:
        """The inverse of :meth:`recurrent`.

        Raises:
            ValueError: the arrays are not those of this model.
        """
        layers = tuple(
            Recurrent(
                _to_mlx(recurrent, f"gdn.{i}.window", like=layer.window),
                _to_mlx(recurrent, f"gdn.{i}.matrix", like=layer.matrix),
            )
            for i, layer in enumerate(self._empty.recurrent)
        )
        checkpoint = Checkpoint(length, layers)
        mx.eval(*checkpoint.arrays)
        return checkpoint

    def state(self, checkpoint: Checkpoint, rows: Sequence[Arrays]) -> State:
        """A state at ``checkpoint`` from consecutive ``rows``, the first of which begin at token 0.

        Raises:
            ValueError: the arrays are not those of this model.
        """
        kv = [self._layer(i, like, checkpoint.length, rows) for i, like in enumerate(self._empty.kv)]
        state = State(kv, list(checkpoint.layers), checkpoint.length)
        mx.eval(*state.arrays)
        return state

    def _layer(self, i: int, like: KvRows, n_rows: int, parts: Sequence[Arrays]) -> KvRows:
        buffers = []
        for j, empty in enumerate(like.arrays):
            pieces = [_to_mlx(part, f"kv.{i}.{j}", like=empty, axis=2) for part in parts]
            whole = mx.concatenate([empty, *pieces], axis=2)[:, :, :n_rows]
            if whole.shape[2] != n_rows:
                raise ValueError(f"kv.{i}.{j} has {whole.shape[2]} rows, {n_rows} are needed")
            buffers.append(mx.pad(whole, [(0, 0), (0, 0), (0, capacity_for(n_rows) - n_rows), (0, 0)]))
        return KvRows(like.layout, tuple(buffers), n_rows)


def _describe(state: State) -> str:
    shapes = [(str(a.dtype), a.shape) for rows in state.kv for a in rows.arrays]
    shapes += [(str(a.dtype), a.shape) for a in state.snapshot().arrays]
    return repr(shapes)


def _to_numpy(arrays: Mapping[str, mx.array]) -> Arrays:
    """Numpy has no bfloat16: its bits go as uint16. The copies are numpy's own memory."""
    viewed = {n: a.view(mx.uint16) if a.dtype == mx.bfloat16 else a for n, a in arrays.items()}
    mx.eval(list(viewed.values()))
    return {name: np.array(array) for name, array in viewed.items()}


def _to_mlx(arrays: Arrays, name: str, *, like: mx.array, axis: int | None = None) -> mx.array:
    """The array ``name``, which must be shaped as ``like`` but along ``axis``."""
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    array = mx.array(arrays[name])
    if like.dtype == mx.bfloat16 and array.dtype == mx.uint16:
        array = array.view(mx.bfloat16)
    expected = [n for i, n in enumerate(like.shape) if i != axis]
    if array.dtype != like.dtype or [n for i, n in enumerate(array.shape) if i != axis] != expected:
        raise ValueError(f"{name} is {array.dtype} {array.shape}, not as {like.dtype} {like.shape}")
    return array
