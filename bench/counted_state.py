"""A sequence state that holds nothing but its length: for replaying traces without a model."""

from __future__ import annotations

from dataclasses import dataclass

from cache.state import Checkpoint


@dataclass(frozen=True, slots=True)
class Weights:
    """What a model's state weighs.

    Attributes:
        row_bytes: KV rows of one token over all full-attention layers.
        snapshot_bytes: the recurrent states of all GDN layers.
    """

    row_bytes: int
    snapshot_bytes: int


QWEN_0_8B = Weights(row_bytes=12 * 1024, snapshot_bytes=int(19.3 * 2**20))
QWEN_4B = Weights(row_bytes=32 * 1024, snapshot_bytes=49 * 2**20)
QWEN_27B = Weights(row_bytes=64 * 1024, snapshot_bytes=147 * 2**20)
QWEN_35B_A3B = Weights(row_bytes=20 * 1024, snapshot_bytes=61 * 2**20)
GEOMETRIES = {"0.8B": QWEN_0_8B, "4B": QWEN_4B, "27B": QWEN_27B, "35B-A3B": QWEN_35B_A3B}


@dataclass(frozen=True, slots=True)
class CountedCheckpoint:
    """Implements ``cache.state.Checkpoint``."""

    length: int
    n_bytes: int


class CountedState:
    """Implements ``cache.state.SequenceState``."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.length = 0

    @property
    def n_bytes(self) -> int:
        """Bytes the real state would hold."""
        return self.length * self._weights.row_bytes + self._weights.snapshot_bytes

    def feed(self, n: int) -> None:
        """Stand after ``n`` more ids."""
        self.length += n

    def checkpoint_at(self, length: int) -> CountedCheckpoint:
        """The state at a ``length`` that is being fed."""
        return CountedCheckpoint(length, self._weights.snapshot_bytes)

    def truncate(self, n_tokens: int) -> None:
        """Forget all ids from ``n_tokens`` on."""
        assert n_tokens <= self.length
        self.length = n_tokens

    def shrink(self) -> None:
        """There is no spare room."""

    def snapshot(self) -> CountedCheckpoint:
        """The state here."""
        return self.checkpoint_at(self.length)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to ``checkpoint``."""
        self.truncate(checkpoint.length)

    def fork(self, checkpoint: Checkpoint) -> CountedState:
        """Another state at ``checkpoint``."""
        twin = CountedState(self._weights)
        twin.length = checkpoint.length
        return twin

    def check(self) -> None:
        """There is nothing that could disagree."""
