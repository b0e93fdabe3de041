"""A GDN layer on CUDA: the kernels between the projections, in the place of array operations."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.devices.cuda.kernels.gdn_prompt import TAPS, GdnShape, GdnWeights, can_walk, capture, walk
from model.devices.cuda.kernels.gdn_step import step
from model.layers.gdn import Gdn
from model.layers.ops import Ops
from model.state import Recurrent


class CudaGdn(Gdn):
    """See :class:`Gdn`, which takes the prompts whose shapes the kernels do not.

    Attributes:
        inputs, output: the projections around the kernels.
    """

    def __init__(self, block: nn.Module, config: ModelConfig, ops: Ops) -> None:
        super().__init__(block, config, ops)
        self.inputs, self.output = self._inputs, block.out_proj
        self._shape = GdnShape(
            config.n_key_heads,
            config.n_value_heads,
            config.key_head_dim,
            config.value_head_dim,
            block.norm.eps,
        )
        bias = block.dt_bias.astype(mx.float32)
        self._weights = GdnWeights(self._taps, self._decay_rate, bias, block.norm.weight)
        mx.eval(*self._weights)  # or a compiled step would compute them anew each time

    @staticmethod
    def takes(config: ModelConfig) -> bool:
        """Whether the kernels take the model's heads: a warp reads a row of keys in whole groups."""
        return config.conv_kernel == TAPS and config.key_head_dim % 32 == 0

    def prefill(
        self, x: mx.array, past: Recurrent, capture_at: Sequence[int]
    ) -> tuple[mx.array, Recurrent, list[Recurrent]]:
        if not can_walk(self._shape, x.dtype):
            return super().prefill(x, past, capture_at)
        # squeeze, not [0]: MLX gathers for an index, which copies.
        rows, window = self.inputs.joined(x).squeeze(0), past.window.squeeze(0)
        walked = walk(rows, window, past.matrix.squeeze(0), self._shape, self._weights)
        captured = []
        for position in capture_at:
            tail, state = capture(position, rows, window, walked, self._shape)
            captured.append(Recurrent(tail[None], state[None]))
        tail = mx.contiguous(rows[-window.shape[0] :, : window.shape[1]])
        missing = window.shape[0] - tail.shape[0]
        if missing:
            tail = mx.concatenate([window[-missing:], tail])
        out = self._ops.apply(self.output, walked.out[None])
        return out, Recurrent(tail[None], walked.state[None]), captured

    def step(self, x: mx.array, past: Recurrent) -> tuple[mx.array, Recurrent]:
        mixed, state = self.mix_step(self.inputs.joined(x)[:, 0], past)
        return self._ops.apply(self.output, mixed[:, None]), state

    def mix_step(self, rows: mx.array, past: Recurrent) -> tuple[mx.array, Recurrent]:
        """One token of each of B sequences between the projections: [B, width] to [B, Hv * Dv] and the
        states."""
        mixed, window, matrix = step(rows, past.window, past.matrix, self._shape, self._weights)
        return mixed, Recurrent(window, matrix)
