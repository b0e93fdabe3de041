"""Log probabilities of sampled tokens and of their likeliest alternatives.

They are the model's own: before temperature, penalties, bias and masks, so they say how likely the model
found a token, not how likely the request's settings made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np

from model.drawing import likeliest

Told = tuple[float, tuple[tuple[int, float], ...]]
"""A token's log probability, and (id, log probability) of the alternatives, falling."""


@dataclass(eq=False)
class _Rows:
    """Those of several tokens, computed together and read together.

    Attributes:
        tokens: the sampled tokens', [B] float32.
        top_ids: the likeliest tokens, [B, k] uint32, falling.
        top: theirs, [B, k] float32.
    """

    tokens: mx.array
    top_ids: mx.array
    top: mx.array

    @cached_property
    def told(self) -> list[Told]:
        """One for each row. Waits for the arrays."""
        rows = (np.array(array).tolist() for array in (self.tokens, self.top_ids, self.top))
        return [(own, tuple(zip(ids, values, strict=True))) for own, ids, values in zip(*rows, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """Natural log probabilities of one token and of its alternatives, lazy until :meth:`read`."""

    _rows: _Rows
    _row: int

    def read(self) -> Told:
        """The figures. Waits for them, and for those of the tokens they were computed with."""
        return self._rows.told[self._row]


def logprobs_of(logits: mx.array, tokens: mx.array, n_top: Sequence[int | None]) -> list[Logprobs | None]:
    """What the model thought of the ``tokens`` of several rows.

    Args:
        logits: [B, V].
        tokens: [B].
        n_top: for each row how many of the likeliest tokens are wanted too; None where nothing is.
    """
    found: list[Logprobs | None] = [None] * len(n_top)
    # How ties are broken must not depend on company: rows are put together only where they want as many.
    for n in sorted({n for n in n_top if n is not None}):
        rows = [row for row, wanted in enumerate(n_top) if wanted == n]
        if len(rows) < len(n_top):
            at = mx.array(rows)
            together = _together(logits[at], tokens[at], n)
        else:
            together = _together(logits, tokens, n)
        for i, row in enumerate(rows):
            found[row] = Logprobs(together, i)
    return found


def arrays_of(logprobs: Iterable[Logprobs]) -> list[mx.array]:
    """What there is to evaluate, each array once."""
    rows = {id(each._rows): each._rows for each in logprobs}
    return [array for each in rows.values() for array in (each.tokens, each.top_ids, each.top)]


def _together(logits: mx.array, tokens: mx.array, n_top: int) -> _Rows:
    logits = logits.astype(mx.float32)
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    own = (mx.take_along_axis(logits, tokens[:, None], axis=-1) - total)[:, 0]
    if not n_top:
        nothing = mx.zeros((len(logits), 0))
        return _Rows(own, nothing.astype(mx.uint32), nothing)
    top_ids, top = likeliest(logits, min(n_top, logits.shape[1]))
    return _Rows(own, top_ids.astype(mx.uint32), top - total)
