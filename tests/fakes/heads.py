"""What a multi-token prediction head should remember, and heads that guess as they are told."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from model.forward import Forward
from model.mtp import MtpBatch
from model.state import MtpRows, State


def rows_of(state: State) -> MtpRows:
    assert state.mtp is not None
    return state.mtp


def fresh(forward: Forward, ids: np.ndarray) -> State:
    """A state that was fed ``ids`` in one pass."""
    state = forward.new_state()
    forward.prefill(state, ids)
    return state


def assert_rows_are_those_of(forward: Forward, ids: np.ndarray, state: State) -> None:
    """What the head remembers of ``ids`` is what a fresh pass over them leaves, from its first row on."""
    state.check()
    assert state.length == len(ids)
    mtp, wanted = rows_of(state), rows_of(fresh(forward, ids))
    atol = 5e-2 if mtp.kv.layout.bits else 1e-4
    np.testing.assert_allclose(np.array(mtp.hidden), np.array(wanted.hidden), atol=atol)
    assert mtp.kv.length == max(len(ids) - mtp.first, 0)
    if not mtp.kv.length:
        return
    begin = mtp.first - wanted.first
    found = mtp.kv.layout.decode(tuple(b[:, :, : mtp.kv.length] for b in mtp.kv.arrays))
    expected = wanted.kv.layout.decode(
        tuple(b[:, :, begin : begin + mtp.kv.length] for b in wanted.kv.arrays)
    )
    if mtp.first == 1:  # else keys are turned by where the rows began
        np.testing.assert_allclose(np.array(found[0]), np.array(expected[0]), atol=atol)
    np.testing.assert_allclose(np.array(found[1]), np.array(expected[1]), atol=atol)


class Guessing:
    """In the place of :meth:`MtpBatch.guess`: guesses what it was told, as far as it may be right.

    Args:
        reply: what comes; None to repeat the last token, which is right at times.
        n_prompt: tokens in front of it.
        right: of each guess in turn, how many tokens are right.
    """

    def __init__(self, reply: Sequence[int] | None, n_prompt: int, right: Sequence[int]) -> None:
        self._reply = reply
        self._n_prompt = n_prompt
        self._right = right
        self.n_guesses = 0
        self._real = MtpBatch.guess

    def guess(self, batch: MtpBatch, keys: Sequence[int], tokens: mx.array, n_tokens: int) -> mx.array:
        guessed = np.array(self._real(batch, keys, tokens, n_tokens))
        right = min(self._right[self.n_guesses % len(self._right)], n_tokens)
        self.n_guesses += 1
        for row, key in enumerate(keys):
            if self._reply is None:
                guessed[row, :right] = int(tokens[row].item())
                continue
            rows = batch._rows[key]
            n_fed = rows.first + rows.kv.length - self._n_prompt  # and the sampled token behind those
            told = list(self._reply[n_fed + 1 : n_fed + 1 + right])
            guessed[row, : len(told)] = told
            if len(told) < n_tokens:
                truth = self._reply[n_fed + 1 + len(told)] if n_fed + 1 + len(told) < len(self._reply) else 0
                guessed[row, len(told)] = 11 if truth == 10 else 10
        return mx.array(guessed)
