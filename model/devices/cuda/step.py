"""A decode step as a few compiled functions: one from each place where rows are appended to the next.

A step launches some hundred and fifty kernels. Building that graph anew in Python takes as long as the GPU
does; a compiled function keeps it. The rows themselves grow at every step, so they stay outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import mlx.core as mx
import mlx.nn as nn

from model.devices.cuda.attention import CudaAttention, Heads, positions_of
from model.devices.cuda.gdn import CudaGdn
from model.devices.cuda.mixture import CudaFeedForward
from model.devices.cuda.product import Product
from model.layers.attention import StepGroup
from model.layers.network import Block
from model.layers.ops import Ops
from model.state import Recurrent

Arrays = list[mx.array]


class _Layer:
    """A layer over rows [B, H] before its first norm: products, each with the norm or the sum at its side."""

    def __init__(self, block: Block, norm: nn.Module, norm_inside: nn.Module, ops: Ops) -> None:
        assert isinstance(block.mixer, CudaGdn | CudaAttention)
        assert isinstance(block.feed_forward, CudaFeedForward)
        self.mixer = block.mixer
        self.enter = Product(block.mixer.inputs.layers, ops.apply, norm=norm)
        self.leave = Product([block.mixer.output], ops.apply)
        self._norm_inside = norm_inside
        self._experts = block.feed_forward.experts
        mlp = block.feed_forward.mlp
        if mlp is not None:
            self._widen = Product(mlp.inputs.layers, ops.apply, norm=norm_inside, is_gated=True)
            self._narrow = Product([mlp.output], ops.apply)

    def end(self, x: mx.array, mixed: mx.array) -> mx.array:
        """The layer's input and what its mixer's output projection is applied to, to the layer's output."""
        x = self.leave(mixed, x)
        if self._experts is not None:
            return self._experts.step(self._norm_inside(x), x)
        return self._narrow(self._widen(x), x)


@dataclass(frozen=True)
class _Segment:
    """Layers up to one that attends, of which the first part belongs to the segment.

    Attributes:
        run: the compiled function over arrays.
        n_recurrent: GDN layers inside.
        attention: what the segment ends with; None for the last, which ends with the logits.
    """

    run: Callable[[Arrays], Arrays]
    n_recurrent: int
    attention: CudaAttention | None


class CompiledStep:
    """One token to each of B sequences; see :data:`model.layers.network.Step`.

    Args:
        model: mlx-lm's, for the embeddings and the norms.
        blocks: the layers.
        head: [..., H] to [..., V].
        ops: what the products that no kernel takes are computed with.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[Block], head: nn.Module, ops: Ops) -> None:
        self._embed = model.embed_tokens
        self._head = Product([head], ops.apply, norm=model.norm, dtype=mx.float32)
        self._segments: list[_Segment] = []
        before: _Layer | None = None
        inside: list[_Layer] = []
        for block, module in zip(blocks, model.layers, strict=True):
            layer = _Layer(block, module.input_layernorm, module.post_attention_layernorm, ops)
            if isinstance(layer.mixer, CudaAttention):
                self._segments.append(self._segment(before, inside, layer))
                before, inside = layer, []
            else:
                inside.append(layer)
        self._segments.append(self._segment(before, inside, None))

    @staticmethod
    def takes(blocks: Sequence[Block]) -> bool:
        """Whether every layer is one that can be cut where it appends rows."""
        return all(isinstance(block.mixer, CudaGdn | CudaAttention) for block in blocks)

    def __call__(self, ids: mx.array, groups: Sequence[StepGroup], recurrent: list[Recurrent]) -> mx.array:
        """ids [B] to logits [B, V], lazily; the states advance."""
        positions = positions_of(groups)
        carried = [ids]
        n_linear, layers = 0, count()
        for segment in self._segments:
            inside = slice(n_linear, n_linear + segment.n_recurrent)
            states = [array for state in recurrent[inside] for array in (state.window, state.matrix)]
            outs = segment.run([positions, *carried, *states])
            n_outs = len(outs) - len(states)
            after = outs[n_outs:]
            recurrent[inside] = [Recurrent(*after[i : i + 2]) for i in range(0, len(after), 2)]
            n_linear = inside.stop
            if segment.attention is None:
                break
            x, *heads = outs[:n_outs]
            carried = [x, segment.attention.mix_step(Heads(*heads), groups, next(layers))]
        return outs[0]

    def _segment(self, before: _Layer | None, inside: Sequence[_Layer], last: _Layer | None) -> _Segment:
        """From the rows in ``before`` (None: from the ids) to those in ``last`` (None: to the logits)."""

        def run(arrays: Arrays) -> Arrays:
            positions, first, *rest = arrays
            if before is None:
                x = self._embed(first)
            else:
                mixed, *rest = rest
                x = before.end(first, mixed)
            after: Arrays = []
            for i, layer in enumerate(inside):
                assert isinstance(layer.mixer, CudaGdn)
                past = Recurrent(*rest[2 * i : 2 * i + 2])
                mixed, state = layer.mixer.mix_step(layer.enter(x), past)
                x = layer.end(x, mixed)
                after += [state.window, state.matrix]
            if last is None:
                return [self._head(x), *after]
            assert isinstance(last.mixer, CudaAttention)
            return [x, *last.mixer.begin_step(last.enter(x), positions), *after]

        attention = None if last is None else last.mixer
        assert attention is None or isinstance(attention, CudaAttention)
        return _Segment(mx.compile(run), len(inside), attention)
