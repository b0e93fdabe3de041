"""The dense feed-forward half on the CPU in NumPy: rows of a prompt shared out to all cores, and steps."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from model.devices.cpu.crew import Crew
from model.devices.cpu.rows import (
    MANY_ROWS,
    Array,
    can_multiply,
    is_plain,
    matrix,
    one_plus_exp_minus,
    pieces,
    silu,
    step_multiply,
)
from model.layers.feed_forward import FeedForward
from model.layers.ops import Ops


class CpuFeedForward(FeedForward):
    """See :class:`FeedForward`, which takes short prompts and layers of other kinds (LoRA, experts).

    Attributes:
        steps_in_numpy: whether :meth:`step_rows` may be called.
    """

    def __init__(self, block: nn.Module, ops: Ops, crew: Crew) -> None:
        super().__init__(block, ops)
        self._crew = crew
        layers = [] if self.mlp is None else [*self.mlp.inputs.layers, self.mlp.output]
        self._can_multiply = bool(layers) and can_multiply(*layers)
        self.steps_in_numpy = bool(layers) and all(map(is_plain, layers))
        if self.steps_in_numpy:
            *self._step_inputs, self._step_output = map(matrix, layers)

    def __call__(self, x: mx.array) -> mx.array:
        n_seqs, n_tokens, _ = x.shape
        mlp = self.mlp
        if mlp is None or n_seqs > 1 or n_tokens < MANY_ROWS or not self._can_multiply:
            return super().__call__(x)
        rows = np.asarray(x)[0]
        inputs, output = [matrix(layer) for layer in mlp.inputs.layers], matrix(mlp.output)
        out = np.empty((n_tokens, output.shape[1]), np.float32)
        parts = pieces(n_tokens, self._crew)

        def one(i: int) -> None:
            gate, up = mlp.inputs.split([rows[parts[i]] @ weight for weight in inputs])
            gate /= one_plus_exp_minus(gate, np.empty_like(gate))
            gate *= up
            np.matmul(gate, output, out=out[parts[i]])

        self._crew.each(one, len(parts))
        return mx.array(out)[None]

    def step_rows(self, x: Array) -> Array:
        """One token of each of B sequences, [B, H] to [B, H]."""
        assert self.mlp is not None
        gate, up = self.mlp.inputs.split([step_multiply(x, w, self._crew) for w in self._step_inputs])
        mixed = silu(gate)
        mixed *= up
        return step_multiply(mixed, self._step_output, self._crew)
