"""A GDN layer on the CPU in NumPy: prompts on all cores, and steps."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from model.checkpoint.config import ModelConfig
from model.devices.cpu.crew import Crew
from model.devices.cpu.gdn_rows import MixWeights, Rows, extend, mix, step, window_after
from model.devices.cpu.rows import (
    MANY_ROWS,
    Array,
    can_multiply,
    is_plain,
    matrix,
    multiply,
    step_multiply,
)
from model.layers.gdn import Gdn, StateTrail, Trail
from model.layers.ops import Ops
from model.state import Recurrent

_FEW_STATES = 4  # of many tokens, for which it pays to take them on the way


class CpuGdn(Gdn):
    """See :class:`Gdn`, which takes short prompts and layers of other kinds (LoRA).

    Attributes:
        steps_in_numpy: whether :meth:`step_rows` may be called.
    """

    def __init__(self, block: nn.Module, config: ModelConfig, ops: Ops, crew: Crew) -> None:
        super().__init__(block, config, ops)
        self._crew = crew
        self._can_multiply = can_multiply(*self._inputs.layers, block.out_proj)
        self.steps_in_numpy = all(map(is_plain, (*self._inputs.layers, block.out_proj)))
        if self.steps_in_numpy:
            self._step_inputs = [matrix(layer) for layer in self._inputs.layers]
            self._step_output = matrix(block.out_proj)
        by_tap = mx.contiguous(block.conv1d.weight.squeeze(-1).T)  # [K, C]
        read = (by_tap, self._decay_rate, block.dt_bias, block.norm.weight)
        taps, rate, bias, norm = (np.asarray(x.astype(mx.float32)) for x in read)
        self._weights = MixWeights(taps, rate, bias, norm, block.norm.eps)

    def prefill(
        self, x: mx.array, past: Recurrent, capture_at: Sequence[int]
    ) -> tuple[mx.array, Recurrent, list[Recurrent]]:
        n_tokens = x.shape[1]
        if n_tokens < MANY_ROWS or not self._can_multiply:
            return super().prefill(x, past, capture_at)
        inputs = np.asarray(x)[0]
        rows = Rows(
            *self._inputs.split([multiply(inputs, matrix(p), self._crew) for p in self._inputs.layers])
        )
        window, state = np.asarray(past.window)[0], np.asarray(past.matrix)[0]
        mixed, last, captured = mix(rows, window, state, capture_at, self._weights, self._config, self._crew)
        out = multiply(mixed, matrix(self._block.out_proj), self._crew)
        states = [
            Recurrent(mx.array(window_after(window, rows.qkv, end))[None], mx.array(found)[None])
            for end, found in zip([*capture_at, n_tokens], [*captured, last], strict=True)
        ]
        return mx.array(out)[None], states[-1], states[:-1]

    def extend_rows(
        self, x: Array, past: Recurrent, n_tokens: int, capture_at: Sequence[int]
    ) -> tuple[Array, Trail]:
        """:meth:`extend` of rows [B * T, H]."""
        rows = Rows(*self._inputs.split([step_multiply(x, w, self._crew) for w in self._step_inputs]))
        window, state = np.asarray(past.window), np.asarray(past.matrix)
        trail: Trail
        if n_tokens == len(x) >= MANY_ROWS and len(capture_at) <= _FEW_STATES:
            # Of one sequence, as many as a prompt that all cores read.
            mixed, _, found = mix(
                rows, window[0], state[0], capture_at, self._weights, self._config, self._crew
            )
            seen = mx.concatenate([past.window, mx.array(rows.qkv)[None]], axis=1)
            matrices = {n: mx.array(one)[None] for n, one in zip(capture_at, found, strict=True)}
            trail = StateTrail(seen, matrices)
            return step_multiply(mixed, self._step_output, self._crew), trail
        mixed, trail = extend(rows, window, state, n_tokens, self._weights, self._config)
        return step_multiply(mixed, self._step_output, self._crew), trail

    def step_rows(self, x: Array, past: Recurrent) -> tuple[Array, Recurrent]:
        """:meth:`step` of rows [B, H]."""
        rows = Rows(*self._inputs.split([step_multiply(x, w, self._crew) for w in self._step_inputs]))
        window, state = np.asarray(past.window), np.asarray(past.matrix)
        mixed, window, state = step(rows, window, state, self._weights, self._config)
        out = step_multiply(mixed, self._step_output, self._crew)
        return out, Recurrent(mx.array(window), mx.array(state))
