"""The replies to one prompt: as many at a time as there is room for, each with a state of its own."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from cache.entry import RunningEntry
from model.text.grammar.masks import Grammar
from server.engine.ticket import Ticket


@dataclass(eq=False)
class Siblings:
    """``n`` replies to one prompt, which begin one after another as places come free.

    Attributes:
        base: the entry of the prompt, from which the replies still to come branch off; None when all have
            begun.
        logits: [V], the prompt's last.
        grammar: what their content must match, at its start.
        quotes: uint32 arrays, what they may quote besides the prompt.
        n_begun: replies that have begun.
    """

    ticket: Ticket
    base: RunningEntry | None
    logits: mx.array
    grammar: Grammar | None = None
    quotes: tuple[NDArray[np.uint32], ...] = ()
    n_begun: int = 0

    @property
    def n_to_come(self) -> int:
        """Replies that have not begun."""
        return 0 if self.base is None else self.ticket.request.n_replies - self.n_begun
