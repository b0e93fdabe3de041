"""A sequence state over integers that cannot hide a mistake.

Its KV rows are the ids themselves; its recurrent state is a hash chain over every id fed. A wrong
restore, fork or cut leaves a hash that no fresh run over the same ids would give.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cache.state import Checkpoint, SequenceState

_MASK = (1 << 61) - 1


def chain(ids: Iterable[int], seed: int = 0) -> int:
    """The recurrent state after ``ids``, from the one before them."""
    value = seed
    for token in ids:
        value = (value * 0x5851F42D4C957F2D + int(token) + 1) & _MASK
    return value


@dataclass(frozen=True)
class Geometry:
    """What a state weighs. The default is a 0.8B model's in bf16."""

    row_bytes: int = 12 * 1024
    snapshot_bytes: int = 19_300 * 1024
    row_step: int = 256

    def kv_bytes(self, n_rows: int) -> int:
        return -(-n_rows // self.row_step) * self.row_step * self.row_bytes


@dataclass(frozen=True)
class FakeCheckpoint:
    length: int
    value: int
    n_bytes: int


class FakeState:
    """Implements ``cache.state.SequenceState``."""

    def __init__(self, geometry: Geometry | None = None) -> None:
        self.geometry = geometry or Geometry()
        self.rows: list[int] = []
        self.value = 0
        self.position = 0
        self._capacity = 0

    @property
    def length(self) -> int:
        return len(self.rows)

    @property
    def n_bytes(self) -> int:
        return self.geometry.kv_bytes(self._capacity) + self.geometry.snapshot_bytes

    def feed(self, ids: Iterable[int], capture_at: Iterable[int] = ()) -> list[FakeCheckpoint]:
        """What ``Forward.prefill`` does to a state: feed ``ids``, return the states at ``capture_at``."""
        self.check()
        return self.feed_unchecked(ids, capture_at)

    def feed_unchecked(self, ids: Iterable[int], capture_at: Iterable[int] = ()) -> list[FakeCheckpoint]:
        """:meth:`feed` without the check, for decoding token by token."""
        wanted, taken = set(capture_at), []
        for token in ids:
            self.rows.append(int(token))
            self.value = chain((token,), self.value)
            self.position += 1
            if self.position in wanted:
                taken.append(self.snapshot())
        self._capacity = max(self._capacity, len(self.rows))
        return taken

    def truncate(self, n_tokens: int) -> None:
        assert n_tokens <= len(self.rows)
        del self.rows[n_tokens:]

    def shrink(self) -> None:
        self._capacity = len(self.rows)

    def snapshot(self) -> FakeCheckpoint:
        return FakeCheckpoint(self.position, self.value, self.geometry.snapshot_bytes)

    def restore(self, checkpoint: Checkpoint) -> None:
        assert isinstance(checkpoint, FakeCheckpoint)
        self.truncate(checkpoint.length)
        self.value, self.position = checkpoint.value, checkpoint.length

    def fork(self, checkpoint: Checkpoint) -> SequenceState:
        assert isinstance(checkpoint, FakeCheckpoint)
        twin = FakeState(self.geometry)
        twin.adopt(self.rows[: checkpoint.length], checkpoint)
        return twin

    def adopt(self, rows: list[int], checkpoint: FakeCheckpoint) -> None:
        """Become what ``rows`` and ``checkpoint`` say, true or not: :meth:`check` will tell."""
        self.rows, self._capacity = rows, len(rows)
        self.value, self.position = checkpoint.value, checkpoint.length

    def check(self) -> None:
        assert self.position == len(self.rows), "recurrent state and KV rows disagree"
        assert self.value == chain(self.rows), "the recurrent state is not that of a fresh run"
