"""What the cache may know of a model's state: lengths, bytes, how to go back, and how to store it.

The state is opaque here. ``model/state.py`` and ``model/codec.py`` implement these protocols over MLX
arrays; the tests and ``bench/replay.py`` implement them over integers. Nothing in ``cache/`` may look inside.

A state takes back only checkpoints of its own kind, which structural types cannot say: hence ``Any``
where a checkpoint goes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


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

    def shrink(self) -> None:
        """Give back the memory of rows that were cut."""

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


class LentState(Protocol):
    """A state that someone else holds for a while, such as a row of a decoding batch."""

    @property
    def n_bytes(self) -> int:
        """Bytes held for this sequence, spare room included."""

    def fork(self, checkpoint: Any) -> SequenceState:
        """A state of its own at ``checkpoint``; the lent one goes on undisturbed."""


Buffers = Mapping[str, npt.NDArray[np.generic]]
"""Arrays by name, in memory of their own; kinds of numbers that numpy lacks go as integers."""


class StateCodec(Protocol):
    """Turns states into arrays and arrays into states, without loss."""

    @property
    def layout(self) -> str:
        """Names the arrays' meaning; arrays of another layout must not be read."""

    def rows(self, state: Any, start: int, end: int) -> Buffers:
        """The KV rows of tokens [start, end)."""

    def recurrent(self, checkpoint: Any) -> Buffers:
        """The recurrent states of ``checkpoint``."""

    def checkpoint(self, length: int, recurrent: Buffers) -> Checkpoint:
        """What :meth:`recurrent` was taken from, at ``length`` tokens.

        Raises:
            ValueError: the arrays are not those of this model.
        """

    def state(self, checkpoint: Any, rows: Sequence[Buffers]) -> SequenceState:
        """A state of its own at ``checkpoint``, from consecutive ``rows`` that begin at token 0 and
        reach at least to the checkpoint.

        Raises:
            ValueError: the arrays are not those of this model.
        """
