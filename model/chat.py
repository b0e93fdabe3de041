"""Turns a conversation into the token ids of its prompt, by the checkpoint's own template."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class RenderedPrompt:
    """A conversation as the model reads it, and where its parts begin.

    Attributes:
        ids: token ids, uint32 [n].
        message_starts: positions of the control token that opens each message, ascending; known
            from rendering, never from what a user typed.
        message_roles: the role in each of those openings.
        shared_points: ascending positions < n up to which the prompts of next turns share ``ids``.
        opens_thought: the prompt's tail leaves a thought open, so the reply begins inside it.
        system_end: end of the system and tools block, 0 where there is none.
    """

    ids: NDArray[np.uint32]
    message_starts: tuple[int, ...] = ()
    message_roles: tuple[str, ...] = ()
    shared_points: tuple[int, ...] = ()
    opens_thought: bool = False
    system_end: int = 0
