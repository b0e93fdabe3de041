"""What the disk tier may ask of the model: states as named arrays, and back.

``model/codec.py`` implements this over MLX arrays; nothing in ``cache/`` knows what the names mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cache.state import Checkpoint, SequenceState

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
