"""A model that writes what a script says: the real one computes, other logits come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from model.forward import Forward

Pick = Callable[[int], int]
"""From the number of tokens fed to the token that must come next."""


def script(n_prompt: int, ids: Sequence[int], end_id: int) -> Pick:
    """Writes ``ids`` behind a prompt of ``n_prompt`` tokens, then ``end_id`` for ever."""
    told = dict(enumerate(ids, start=n_prompt))
    return lambda n_fed: told.get(n_fed, end_id)


class ScriptedForward:
    """Everything of ``forward``, except that logits allow one token alone."""

    def __init__(self, forward: Forward, pick: Pick) -> None:
        self._forward = forward
        self._pick = pick

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward, name)

    def prefill(self, state: Any, ids: np.ndarray[Any, Any], *, capture_at: Sequence[int] = ()) -> Any:
        read = self._forward.prefill(state, ids, capture_at=capture_at)
        return replace(read, logits=_only(self._pick(state.length), read.logits))

    def new_batch(self) -> ScriptedBatch:
        return ScriptedBatch(self._forward.new_batch(), self._pick)


class ScriptedBatch:
    """Everything of a decode batch, except the logits."""

    def __init__(self, batch: Any, pick: Pick) -> None:
        self._batch = batch
        self._pick = pick

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def step(self, tokens: mx.array) -> mx.array:
        logits = self._batch.step(tokens)
        rows = [
            _only(self._pick(self._batch.length(key)), logits[i]) for i, key in enumerate(self._batch.keys)
        ]
        return mx.stack(rows)

    def extend(self, tokens: mx.array) -> mx.array:
        before = [self._batch.length(key) for key in self._batch.keys]
        logits = self._batch.extend(tokens)
        return mx.stack(
            [
                mx.stack([_only(self._pick(n + t + 1), logits[i, t]) for t in range(tokens.shape[1])])
                for i, n in enumerate(before)
            ]
        )


def _only(token_id: int, logits: mx.array) -> mx.array:
    """Logits [V] like ``logits``, with one token far above all others."""
    return logits * 0 + mx.where(mx.arange(logits.shape[0]) == token_id, 100.0, 0.0)
