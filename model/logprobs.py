"""Log probabilities of sampled tokens and of their likeliest alternatives.

They are the model's own: before temperature, penalties, bias and masks, so they say how likely the model
found a token, not how likely the request's settings made it.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from model.sampling import likeliest


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """Natural log probabilities of one token, lazy until :meth:`read`.

    Attributes:
        token: the sampled token's, scalar float32.
        top_ids: the likeliest tokens, [k] uint32, falling.
        top: theirs, [k] float32.
    """

    token: mx.array
    top_ids: mx.array
    top: mx.array

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """What there is to evaluate."""
        return self.token, self.top_ids, self.top

    def read(self) -> tuple[float, tuple[tuple[int, float], ...]]:
        """The token's log probability, and (id, log probability) of the alternatives. Waits for them."""
        ids, values = np.array(self.top_ids).tolist(), np.array(self.top).tolist()
        return float(np.array(self.token)), tuple(zip(ids, values, strict=True))


def logprobs_of(logits: mx.array, token: mx.array, n_top: int) -> Logprobs:
    """What the model thought of ``token`` (scalar) and of the ``n_top`` likeliest, from its logits [V]."""
    logits = logits.astype(mx.float32)
    values = logits - mx.logsumexp(logits)
    n_top = min(n_top, logits.shape[0])
    if not n_top:
        return Logprobs(values[token], mx.zeros((0,), dtype=mx.uint32), mx.zeros((0,)))
    top_ids, top = likeliest(values[None], n_top)
    return Logprobs(values[token], top_ids[0].astype(mx.uint32), top[0])
