"""What is computed over rows of logits: draws by a number in [0, 1), and log probabilities.

Log probabilities, of sampled tokens and of their likeliest alternatives, are the model's own: before
temperature, penalties, bias and masks, so they say how likely the model found a token, not how likely the
request's settings made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import mlx.core as mx
import numpy as np

BLOCK = 512
"""Probabilities cumulated in one go; sums over a whole vocabulary would lose the small ones."""
TOP_BLOCK = 256
JUST_BELOW_ONE = 1.0 - 2.0**-22
Told = tuple[float, tuple[tuple[int, float], ...]]
"""A token's log probability, and (id, log probability) of the alternatives, falling."""


@lru_cache(maxsize=32)
def fused_draw(n_kept: int) -> Callable[[dict[str, mx.array]], mx.array]:
    """:func:`draw`, compiled for a device on which launches count: a partition is a sort there, too."""
    return mx.compile(partial(draw, n_kept, partitions=False))


def draw(n_kept: int, arrays: dict[str, mx.array], *, partitions: bool = True) -> mx.array:
    """The index [B] that each row's number falls on.

    Args:
        n_kept: as many of the likeliest stay; 0 for all.
        arrays: ``logits`` [B, V]; ``draws`` in [0, 1) and ``temperature``, [B, 1]; ``top_p`` and ``min_p``,
            [B, 1], where a row asks.
        partitions: as :func:`likeliest` takes it.
    """
    logits, candidates = arrays["logits"], None
    greatest = mx.max(logits, axis=-1, keepdims=True)
    if n_kept:
        candidates, logits = likeliest(logits, n_kept, partitions=partitions)
        greatest = logits[:, :1]
    # exp(0) = 1 for the likeliest: weights, not yet divided by their sum.
    weights = mx.exp((logits - greatest) / arrays["temperature"])
    if "top_p" in arrays:
        # What is kept is a beginning of the row, since it falls; the likeliest is kept in any case.
        before = mx.cumsum(weights, axis=-1) - weights
        kept = before < arrays["top_p"] * mx.sum(weights, axis=-1, keepdims=True)
        weights = mx.where(kept | (mx.arange(n_kept) == 0), weights, 0.0)
    if "min_p" in arrays:
        weights = mx.where(weights >= arrays["min_p"], weights, 0.0)
    index = _invert(weights, arrays["draws"])
    return index if candidates is None else mx.take_along_axis(candidates, index[:, None], axis=-1)[:, 0]


def likeliest(values: mx.array, n_top: int, *, partitions: bool = True) -> tuple[mx.array, mx.array]:
    """Indices and values [B, n_top] of the greatest of ``values`` [B, V], falling.

    The ``n_top`` greatest lie in the ``n_top`` blocks whose greatest are greatest, so no more than those
    are sorted; of a vocabulary of 250,000 that takes a tenth of the time.

    Args:
        partitions: whether to part the greatest from the rest before they are sorted: more operations, less
            work.
    """
    n_rows, n = values.shape
    if n_top * TOP_BLOCK * 2 > n:
        return _sorted(values, n_top, partitions=partitions)
    n_blocks = -(-n // TOP_BLOCK)
    padding = [(0, 0), (0, n_blocks * TOP_BLOCK - n)]
    blocks = mx.pad(values, padding, constant_values=-mx.inf).reshape(n_rows, n_blocks, TOP_BLOCK)
    chosen, _ = _sorted(mx.max(blocks, axis=-1), n_top, partitions=partitions)
    candidates = mx.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(n_rows, -1)
    index, greatest = _sorted(candidates, n_top, partitions=partitions)
    block = mx.take_along_axis(chosen, index // TOP_BLOCK, axis=-1)
    # Padding is only ever among the greatest with the value of what no draw picks.
    return mx.minimum(block * TOP_BLOCK + index % TOP_BLOCK, n - 1), greatest


def _sorted(values: mx.array, n_top: int, *, partitions: bool) -> tuple[mx.array, mx.array]:
    if partitions and n_top < values.shape[-1]:
        greatest = mx.argpartition(-values, kth=n_top - 1, axis=-1)[:, :n_top]
        order = mx.argsort(-mx.take_along_axis(values, greatest, axis=-1), axis=-1)
        index = mx.take_along_axis(greatest, order, axis=-1)
    else:
        index = mx.argsort(-values, axis=-1)[:, :n_top]
    return index, mx.take_along_axis(values, index, axis=-1)


def _invert(weights: mx.array, draws: mx.array) -> mx.array:
    """For each row the index [B] at which the cumulated ``weights`` [B, N] pass ``draws`` [B, 1] of their
    sum. Never one of weight 0. Cumulated in two steps, over blocks and inside one."""
    n_rows, n = weights.shape
    if n <= BLOCK:
        cumulated = mx.cumsum(weights, axis=-1)
        total = cumulated[:, -1:]
        return mx.sum(cumulated <= total * mx.minimum(draws, JUST_BELOW_ONE), axis=-1)
    n_blocks = -(-n // BLOCK)
    weights = mx.pad(weights, [(0, 0), (0, n_blocks * BLOCK - n)]).reshape(n_rows, n_blocks, BLOCK)
    sums = mx.sum(weights, axis=-1)
    block, rest = _passed(sums, draws * mx.sum(sums, axis=-1, keepdims=True))
    inside = mx.take_along_axis(weights, block[:, :, None], axis=1)[:, 0]
    index, _ = _passed(inside, rest)
    return (block * BLOCK + index)[:, 0]


def _passed(weights: mx.array, target: mx.array) -> tuple[mx.array, mx.array]:
    """Where the cumulated ``weights`` [B, N] first exceed ``target`` [B, 1], and what of the target is left
    at that place; both [B, 1]. The target is kept below the sum, whatever rounding did to it."""
    cumulated = mx.cumsum(weights, axis=-1)
    target = mx.minimum(target, cumulated[:, -1:] * JUST_BELOW_ONE)
    index = mx.sum(cumulated <= target, axis=-1, keepdims=True)
    before = mx.take_along_axis(cumulated, index, axis=-1) - mx.take_along_axis(weights, index, axis=-1)
    return index, mx.maximum(target - before, 0.0)


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
