"""Sequences of unlike lengths in one pass: their tokens laid end to end, each sequence with its own past.

Whatever looks at one token alone takes them all as one long row of tokens. Attention and the delta rule look
at the tokens of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import mlx.core as mx
import numpy as np


@dataclass(frozen=True)
class Ragged:
    """Where the tokens of B sequences lie in a pass over N.

    Attributes:
        pasts: tokens that each sequence has already.
        n_tokens: those that it is fed, each at least 1.
        capture_at: of each sequence, counts in 1..n of these after which its state is wanted, ascending.
    """

    pasts: Sequence[int]
    n_tokens: Sequence[int]
    capture_at: Sequence[Sequence[int]]

    @cached_property
    def spans(self) -> list[slice]:
        """The tokens of each sequence among all."""
        return [slice(start, end) for start, end in pairwise(accumulate(self.n_tokens, initial=0))]

    @cached_property
    def positions(self) -> mx.array:
        """Of each token in its sequence, [N] int32."""
        own = [np.arange(n, dtype=np.int32) + past for past, n in zip(self.pasts, self.n_tokens, strict=True)]
        return mx.array(np.concatenate(own))

    @cached_property
    def last(self) -> mx.array:
        """The last token of each sequence among all, [B]."""
        return mx.array([span.stop - 1 for span in self.spans])

    @cached_property
    def in_chunks(self) -> InChunks:
        """The same tokens, each sequence beginning with a chunk."""
        return InChunks.of(self.n_tokens)


CHUNK = 64
_N_BEFORE = 3  # rows that a convolution reads of the past


def n_rows_in_chunks(n_tokens: int) -> int:
    """Rows that a sequence takes in :class:`InChunks`: whole chunks, the convolution's past behind it."""
    return -(-(n_tokens + _N_BEFORE) // CHUNK) * CHUNK


@dataclass(frozen=True)
class InChunks:
    """Sequences end to end, each in whole chunks; the three rows in front of one are its window.

    The rows that fill a sequence's last chunk are inert: they neither decay a state nor write to it. So
    chunks can be computed whatever sequence they belong to, and a sequence is computed as if it were alone.

    Attributes:
        source: which row to take, [M]: 0..N - 1 are tokens; then come the windows of the sequences but the
            first, three rows each; then one inert row.
        tokens: where the tokens are in the result, [N].
        starts: where each sequence begins.
        first_chunks: the first chunk of each sequence, and behind them the number of all; int32, filled up
            with it to four numbers at least.
    """

    source: mx.array
    tokens: mx.array
    starts: Sequence[int]
    first_chunks: mx.array

    @classmethod
    def of(cls, n_tokens: Sequence[int]) -> InChunks:
        """The layout of sequences of such lengths."""
        n_all, n_seqs = sum(n_tokens), len(n_tokens)
        starts = list(accumulate((n_rows_in_chunks(n) for n in n_tokens), initial=0))
        inert = n_all + _N_BEFORE * (n_seqs - 1)
        source = np.full(starts[-1], inert, np.int32)
        tokens = np.concatenate(
            [np.arange(n, dtype=np.int32) + start for n, start in zip(n_tokens, starts, strict=False)]
        )
        source[tokens] = np.arange(n_all, dtype=np.int32)
        for i, start in enumerate(starts[1:-1]):
            window = n_all + _N_BEFORE * i
            source[start - _N_BEFORE : start] = np.arange(window, window + _N_BEFORE, dtype=np.int32)
        chunks = [start // CHUNK for start in starts]
        chunks += [chunks[-1]] * (4 - len(chunks))  # MLX keeps an array of fewer numbers in the host's memory
        return cls(mx.array(source), mx.array(tokens), starts[:-1], mx.array(chunks, mx.int32))
