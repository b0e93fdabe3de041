"""A GDN layer on CUDA: the kernels between the projections, in the place of array operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.devices.cuda.kernels.gdn_prompt import TAPS, GdnShape, GdnWeights, can_walk, capture, walk
from model.devices.cuda.kernels.gdn_step import few, step
from model.layers.gdn import Gdn, Trail
from model.layers.ops import Ops
from model.layers.ragged import Ragged
from model.state import Recurrent

_FEWEST_NUMBERS = 4  # of an array that MLX keeps on the GPU


@dataclass(frozen=True, slots=True)
class StackTrail:
    """A :class:`Trail` as the kernel writes it.

    Attributes:
        counts: ascending.
        windows: [S, B, 3, C], the first for those counts.
        matrices: [S, B, Hv, Dv, Dk].
    """

    counts: tuple[int, ...]
    windows: mx.array
    matrices: mx.array

    def at(self, n_tokens: Sequence[int]) -> Recurrent:
        slots = [self.counts.index(n) for n in n_tokens]
        if len(self.windows) == 1:
            return Recurrent(self.windows.squeeze(0), self.matrices.squeeze(0))
        if len(slots) == 1:
            at = slots[0]
            return Recurrent(self.windows[at : at + 1, 0], self.matrices[at : at + 1, 0]).detached()
        which = mx.array(slots), mx.arange(len(slots))
        return Recurrent(self.windows[which], self.matrices[which])


def wanted_counts(capture_at: Sequence[int]) -> mx.array:
    """Token counts as :func:`few` takes them."""
    return mx.array([*capture_at, *[0] * (_FEWEST_NUMBERS - len(capture_at))], mx.int32)


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
        taps = mx.contiguous(block.conv1d.weight[:, :, 0].T)  # [K, C]
        bias = block.dt_bias.astype(mx.float32)
        self._weights = GdnWeights(taps, self._decay_rate, bias, block.norm.weight)
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

    def prefill_ragged(
        self, x: mx.array, pasts: Sequence[Recurrent], ragged: Ragged
    ) -> tuple[mx.array, list[Recurrent], list[list[Recurrent]]]:
        if len(pasts) == 1 or not can_walk(self._shape, x.dtype):
            return super().prefill_ragged(x, pasts, ragged)
        layout, first = ragged.in_chunks, pasts[0].window.squeeze(0)
        windows = mx.concatenate([past.window.squeeze(0) for past in pasts[1:]])
        given = [
            self.inputs.joined(x).squeeze(0),
            self._inert(windows),
            self._inert(mx.zeros_like(first[:1])),
        ]
        rows = mx.concatenate(given)[layout.source]
        matrices = mx.concatenate([past.matrix for past in pasts])
        walked = walk(rows, first, matrices, self._shape, self._weights, layout.first_chunks)

        def after(row: int, n_tokens: int) -> Recurrent:
            window, matrix = capture(layout.starts[row] + n_tokens, rows, first, walked, self._shape)
            return Recurrent(window[None], matrix[None])

        ends, captured = [], []
        for row, (n_tokens, capture_at) in enumerate(zip(ragged.n_tokens, ragged.capture_at, strict=True)):
            ends.append(after(row, n_tokens))
            captured.append([after(row, n) for n in capture_at])
        return self._ops.apply(self.output, walked.out[layout.tokens][None]), ends, captured

    def _inert(self, windows: mx.array) -> mx.array:
        """Rows of the input projections for tokens that went through the convolution before, [n, C]: their
        gates neither decay a state nor let anything be written to it."""
        n_rows, n_heads = windows.shape[0], self._shape.n_value_heads
        z = mx.zeros((n_rows, n_heads * self._shape.value_head_dim), windows.dtype)
        gates = mx.full((n_rows, 2 * n_heads), -mx.inf, windows.dtype)
        return mx.concatenate([windows, z, gates], axis=1)

    def step(self, x: mx.array, past: Recurrent) -> tuple[mx.array, Recurrent]:
        mixed, state = self.mix_step(self.inputs.joined(x)[:, 0], past)
        return self._ops.apply(self.output, mixed[:, None]), state

    def extend(self, x: mx.array, past: Recurrent, capture_at: Sequence[int]) -> tuple[mx.array, Trail]:
        rows = self.inputs.joined(x).reshape(-1, self._shape.width)
        wanted = wanted_counts(capture_at)
        mixed, windows, matrices = self.mix_few(rows, past, wanted, len(capture_at))
        trail = StackTrail(tuple(capture_at), windows, matrices)
        return self._ops.apply(self.output, mixed.reshape(*x.shape[:2], -1)), trail

    def mix_few(
        self, rows: mx.array, past: Recurrent, wanted: mx.array, n_slots: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        """T tokens of each of B sequences between the projections: [B * T, width] to [B * T, Hv * Dv], and
        the windows and matrices after the token counts ``wanted``, [S, B, ...]."""
        return few(rows, past.window, past.matrix, wanted, n_slots, self._shape, self._weights)

    def mix_step(self, rows: mx.array, past: Recurrent) -> tuple[mx.array, Recurrent]:
        """One token of each of B sequences between the projections: [B, width] to [B, Hv * Dv] and the
        states."""
        mixed, window, matrix = step(rows, past.window, past.matrix, self._shape, self._weights)
        return mixed, Recurrent(window, matrix)
