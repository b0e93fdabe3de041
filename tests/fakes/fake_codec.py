"""Integer states as arrays, and back (``cache.state.StateCodec``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cache.state import Buffers
from tests.fakes.fake_state import FakeCheckpoint, FakeState, Geometry


class FakeCodec:
    layout = "integers"

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry

    def rows(self, state: FakeState, start: int, end: int) -> Buffers:
        assert 0 <= start < end <= state.length
        return {"rows": np.array(state.rows[start:end], dtype=np.uint32)}

    def recurrent(self, checkpoint: FakeCheckpoint) -> Buffers:
        return {"value": np.array([checkpoint.value], dtype=np.int64)}

    def checkpoint(self, length: int, recurrent: Buffers) -> FakeCheckpoint:
        return FakeCheckpoint(length, int(recurrent["value"][0]), self._geometry.snapshot_bytes)

    def state(self, checkpoint: FakeCheckpoint, rows: Sequence[Buffers]) -> FakeState:
        state = FakeState(self._geometry)
        ids = [int(token) for part in rows for token in part["rows"]]
        if len(ids) < checkpoint.length:
            raise ValueError("rows are missing")
        state.adopt(ids[: checkpoint.length], checkpoint)
        return state
