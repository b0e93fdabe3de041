"""A state's arrays, as numpy can write them to a file, and back (``cache.codec.StateCodec``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from model.state import Checkpoint, KvRows, MtpRows, Recurrent, State, capacity_for

_HIDDEN = "hidden"

Arrays = Mapping[str, npt.NDArray[np.generic]]


class StateCodec:
    """Knows the shapes of one model's states from an empty one.

    Args:
        new_state: makes an empty state.
        mtp: names the model's multi-token prediction head: the rows of another are none of its own. What was
            stored without a head, or with another, is read without rows of it, and the other way round.
    """

    def __init__(self, new_state: Callable[[], State], mtp: int = 0) -> None:
        self._empty = new_state()
        self._of_head = f"mtp.{mtp:016x}"
        self.layout = _describe(self._empty)

    def rows(self, state: State, start: int, end: int) -> Arrays:
        """The stored rows of tokens [start, end): one array for each buffer of each layer."""
        assert 0 <= start < end <= state.length
        cut = {
            f"kv.{i}.{j}": mx.contiguous(buffer[:, :, start:end])
            for i, rows in enumerate(state.kv)
            for j, buffer in enumerate(rows.arrays)
        }
        begin = max(start, 1)
        if state.mtp is not None and state.mtp.first <= begin < end:
            first, last = begin - state.mtp.first, end - state.mtp.first
            for j, buffer in enumerate(state.mtp.kv.arrays):
                cut[f"{self._of_head}.{j}"] = mx.contiguous(buffer[:, :, first:last])
        return _to_numpy(cut)

    def recurrent(self, checkpoint: Checkpoint) -> Arrays:
        """The windows and the matrices of all GDN layers."""
        arrays = {}
        for i, layer in enumerate(checkpoint.layers):
            arrays[f"gdn.{i}.window"] = layer.window
            arrays[f"gdn.{i}.matrix"] = layer.matrix
        if checkpoint.hidden is not None:
            arrays[_HIDDEN] = checkpoint.hidden
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
        hidden = None
        if self._empty.mtp is not None and _HIDDEN in recurrent:
            mtp = self._empty.mtp
            hidden = _to_mlx(recurrent, _HIDDEN, like=mx.zeros((1, 1, mtp.width), mtp.kv.layout.dtype))
        checkpoint = Checkpoint(length, layers, hidden)
        mx.eval(*checkpoint.arrays)
        return checkpoint

    def state(self, checkpoint: Checkpoint, rows: Sequence[Arrays]) -> State:
        """A state at ``checkpoint`` from consecutive ``rows``, the first of which begin at token 0.

        Raises:
            ValueError: the arrays are not those of this model.
        """
        n = checkpoint.length
        kv = [_joined(rows, f"kv.{i}", like, n) for i, like in enumerate(self._empty.kv)]
        state = State(kv, list(checkpoint.layers), n, self._mtp(checkpoint, rows))
        mx.eval(*state.arrays)
        return state

    def _mtp(self, checkpoint: Checkpoint, parts: Sequence[Arrays]) -> MtpRows | None:
        """The head's rows: those that no part without any comes after."""
        if self._empty.mtp is None:
            return None
        start, first, held = 0, 1, list[Arrays]()
        for part in parts:
            start += part["kv.0.0"].shape[2]
            if f"{self._of_head}.0" in part:
                held.append(part)
            else:
                first, held = max(start, 1), []
        kv = _joined(held, self._of_head, self._empty.mtp.kv, max(checkpoint.length - first, 0))
        mtp = MtpRows(kv, self._empty.mtp.width, first)
        mtp.go_back(checkpoint.length, checkpoint.hidden)
        return mtp


def _joined(parts: Sequence[Arrays], name: str, like: KvRows, n_rows: int) -> KvRows:
    """The first ``n_rows`` of the rows that ``parts`` hold under ``name``, in one buffer each."""
    buffers = []
    for j, empty in enumerate(like.arrays):
        pieces = [_to_mlx(part, f"{name}.{j}", like=empty, axis=2) for part in parts]
        whole = mx.concatenate([empty, *pieces], axis=2)[:, :, :n_rows]
        if whole.shape[2] != n_rows:
            raise ValueError(f"{name}.{j} has {whole.shape[2]} rows, {n_rows} are needed")
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
