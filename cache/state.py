"""What the cache may know of a model's state: lengths, bytes, and how to go back.

The state is opaque here. ``model/state.py`` implements these protocols over MLX arrays; the tests
and ``bench/replay.py`` implement them over integers. Nothing in ``cache/`` may look inside.

A state takes back only checkpoints of its own kind, which structural types cannot say: hence ``Any``
where a checkpoint goes in.
"""

from __future__ import annotations

from typing import Any, Protocol


class Checkpoint(Protocol):
    """The recurrent state after exactly ``length`` tokens; the KV rows stay with the live state."""

    @property
    def length(self) -> int:
        """Tokens the checkpoint stands for."""

    @property
    def n_bytes(self) -> int:
        """Bytes it holds on its own, KV rows not included."""


class SequenceState(Protocol):
    """The live state of one sequence: KV rows that can be cut, a recurrent state that cannot."""

    @property
    def length(self) -> int:
        """Tokens the state stands for: every KV layer's length and every recurrent position."""

    @property
    def n_bytes(self) -> int:
        """Bytes held, spare KV capacity included."""

    def truncate(self, n_tokens: int) -> None:
        """Forget the KV rows from ``n_tokens`` on. Alone it leaves the recurrent state behind the
        cut: only :meth:`restore` makes the two agree again."""

    def snapshot(self) -> Checkpoint:
        """The recurrent state here, to return to later. No copy of KV rows."""

    def restore(self, checkpoint: Any) -> None:
        """Go back to ``checkpoint``, taken on this state or on the one it was forked from:
        truncate the KV rows to its length and put its recurrent state in place."""

    def fork(self, checkpoint: Any) -> SequenceState:
        """A new state at ``checkpoint`` that shares no buffer with this one (KV rows up to the
        checkpoint are copied)."""

    def check(self) -> None:
        """Assert that every layer stands at :attr:`length` (invariant 1)."""
