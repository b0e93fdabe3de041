"""The feed-forward half on the CPU in NumPy, and a decode step from the ids to the logits.

A step of a small model is some 1,500 operations on a few hundred numbers each. As lazy arrays one costs
3.5 µs (its node in the graph, the queue, MLX's thread), in NumPy 1 µs; and a single row meets a matrix in
the product that is made for that, which MLX does not call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from model.devices.cpu.attention import CpuAttention, Standing
from model.devices.cpu.gdn import CpuGdn
from model.devices.cpu.rows import (
    MANY_ROWS,
    Array,
    Crew,
    RmsNorm,
    StepInputs,
    can_multiply,
    is_plain,
    matrix,
    one_plus_exp_minus,
    pieces,
    silu,
    step_multiply,
)
from model.layers.attention import StepGroup
from model.layers.gdn import Trail
from model.layers.network import Block, FeedForward
from model.layers.ops import Ops
from model.state import Recurrent


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
        if self.mlp is not None and self.steps_in_numpy:
            self._step_inputs = StepInputs(self.mlp.inputs, crew)
            self._step_output = matrix(self.mlp.output)

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
        gate, up = self._step_inputs(x)
        mixed = silu(gate)
        mixed *= up
        return step_multiply(mixed, self._step_output, self._crew)


class CpuStep:
    """One token to each of B sequences; see :data:`model.layers.network.Step`.

    Args:
        model: mlx-lm's, for the embedding and the norms.
        blocks: its layers.
        head: gives the logits.
        crew: the threads that share what is large.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[Block], head: nn.Module, crew: Crew) -> None:
        self._embedding = np.asarray(model.embed_tokens.weight)
        self._layers: list[tuple[RmsNorm, CpuAttention | CpuGdn, RmsNorm, CpuFeedForward]] = []
        for layer, block in zip(model.layers, blocks, strict=True):
            norm, norm_inside = RmsNorm(layer.input_layernorm), RmsNorm(layer.post_attention_layernorm)
            assert isinstance(block.mixer, CpuAttention | CpuGdn)
            assert isinstance(block.feed_forward, CpuFeedForward)
            self._layers.append((norm, block.mixer, norm_inside, block.feed_forward))
        self._last_norm = RmsNorm(model.norm)
        self._attention = next(
            (mixer for _, mixer, *_ in self._layers if isinstance(mixer, CpuAttention)), None
        )
        self._head = matrix(head)
        self._crew = crew

    @staticmethod
    def takes(model: nn.Module, blocks: Sequence[Block], head: nn.Module) -> bool:
        """Whether all weights are plain float32 matrices: no adapters, experts or packed numbers."""
        halves = [half for block in blocks for half in (block.mixer, block.feed_forward)]
        kinds = CpuAttention | CpuGdn | CpuFeedForward
        are_plain = all(isinstance(half, kinds) and half.steps_in_numpy for half in halves)
        return are_plain and type(model.embed_tokens) is nn.Embedding and is_plain(head)

    def __call__(
        self, ids: mx.array, groups: Sequence[StepGroup], recurrent: list[Recurrent]
    ) -> tuple[mx.array, mx.array]:
        """ids [B] to logits [B, V] and rows [B, 1, H]; the states advance. Computed when it returns."""
        x = self._embedding[np.asarray(ids)]
        standings = self._standings(groups, 1)
        n_full, n_linear = count(), count()
        for norm, mixer, norm_inside, feed_forward in self._layers:
            if isinstance(mixer, CpuGdn):
                i = next(n_linear)
                mixed, recurrent[i] = mixer.step_rows(norm(x), recurrent[i])
            else:
                mixed = mixer.step_rows(norm(x), groups, standings, next(n_full))
            x += mixed
            x += feed_forward.step_rows(norm_inside(x))
        hidden = self._last_norm(x)
        return mx.array(step_multiply(hidden, self._head, self._crew)), mx.array(hidden[:, None])

    def head(self, hidden: mx.array) -> mx.array:
        """Rows [..., H] after the last norm to logits [..., V]."""
        rows = np.asarray(hidden).reshape(-1, hidden.shape[-1])
        return mx.array(step_multiply(rows, self._head, self._crew)).reshape(*hidden.shape[:-1], -1)

    def extend(
        self,
        ids: mx.array,
        groups: Sequence[StepGroup],
        recurrent: Sequence[Recurrent],
        capture_at: Sequence[int],
    ) -> tuple[mx.array, list[Trail]]:
        """See :class:`model.layers.network.Extend`."""
        n_seqs, n_tokens = ids.shape
        x = self._embedding[np.asarray(ids).ravel()]
        standings = self._standings(groups, n_tokens)
        past, n_full = iter(recurrent), count()
        trails: list[Trail] = []
        for norm, mixer, norm_inside, feed_forward in self._layers:
            if isinstance(mixer, CpuGdn):
                mixed, trail = mixer.extend_rows(norm(x), next(past), n_tokens, capture_at)
                trails.append(trail)
            else:
                mixed = mixer.extend_rows(norm(x), groups, standings, next(n_full))
            x += mixed
            x += feed_forward.step_rows(norm_inside(x))
        return mx.array(self._last_norm(x)).reshape(n_seqs, n_tokens, -1), trails

    def _standings(self, groups: Sequence[StepGroup], n_tokens: int) -> list[Standing]:
        if self._attention is None:
            return []
        return [self._attention.standing(group, n_tokens) for group in groups]
