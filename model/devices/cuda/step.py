"""A decode step as a few compiled functions: one from each place where rows are appended to the next.

A step of one token, or of a few, launches some hundred and fifty kernels. Building that graph anew in Python
takes as long as the GPU does; a compiled function keeps it. The rows themselves grow at every step, so they
stay outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import mlx.core as mx
import mlx.nn as nn

from model.devices.cuda.attention import CudaAttention, Heads, positions_of
from model.devices.cuda.gdn import CudaGdn, StackTrail, wanted_counts
from model.devices.cuda.mixture import CudaFeedForward
from model.devices.cuda.product import Product
from model.layers.attention import StepGroup
from model.layers.gdn import Trail
from model.layers.network import Block
from model.layers.ops import Ops
from model.state import Recurrent

Arrays = list[mx.array]

# Tokens of a sequence for which graphs are made; others are padded up to them.
FEW_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


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
        self._last_norm = model.norm
        self._nothing = mx.zeros((0,), mx.int32)  # no states are wanted
        mx.eval(self._nothing)
        self._slots: dict[int, mx.array] = {}  # by length: a compiled function knows numbers by shapes alone
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

    def __call__(
        self, ids: mx.array, groups: Sequence[StepGroup], recurrent: list[Recurrent]
    ) -> tuple[mx.array, mx.array]:
        """ids [B] to logits [B, V] and rows [B, 1, H], lazily; the states advance."""
        (logits, x), states = self._run(ids, groups, recurrent, self._nothing, 0)
        recurrent[:] = [Recurrent(*pair) for pair in states]
        return logits, self._last_norm(x)[:, None]  # which few look at: the logits' product norms by itself

    def extend(
        self,
        ids: mx.array,
        groups: Sequence[StepGroup],
        recurrent: Sequence[Recurrent],
        capture_at: Sequence[int],
    ) -> tuple[mx.array, list[Trail]]:
        """See :class:`model.layers.network.Extend`."""
        n_seqs, n_tokens = ids.shape
        # Behind the tokens others are fed, up to a number that a graph was made for; nobody sees them.
        n_fed = next((size for size in FEW_SIZES if size >= n_tokens), n_tokens)
        ids = mx.pad(ids, [(0, 0), (0, n_fed - n_tokens)])
        n_slots = 1 << (len(capture_at) - 1).bit_length()  # likewise
        wanted = wanted_counts([*capture_at, *[0] * (n_slots - len(capture_at))])
        (rows,), states = self._run(ids.flatten(), groups, recurrent, wanted, n_slots)
        for group in groups:
            for kv in group.kv:
                kv.truncate(group.n_columns + n_tokens)
        trails: list[Trail] = [StackTrail(tuple(capture_at), *pair) for pair in states]
        return rows.reshape(n_seqs, n_fed, -1)[:, :n_tokens], trails

    def _run(
        self,
        ids: mx.array,
        groups: Sequence[StepGroup],
        recurrent: Sequence[Recurrent],
        wanted: mx.array,
        n_slots: int,
    ) -> tuple[Arrays, list[tuple[mx.array, mx.array]]]:
        """T tokens of each of B sequences, ids [B * T]: the logits and the rows before the last norm, and the
        window and the matrix of each GDN layer afterwards; or, where S states are ``wanted``, the rows after
        the last norm, and the windows and matrices [S, B, ...]."""
        if n_slots not in self._slots:
            self._slots[n_slots] = mx.zeros((n_slots,), mx.uint32)
            mx.eval(self._slots[n_slots])
        n_tokens = ids.size // sum(group.members.size for group in groups)
        positions = positions_of(groups, n_tokens)
        carried = [ids]
        states: list[tuple[mx.array, mx.array]] = []
        past, layers = iter(recurrent), count()
        for segment in self._segments:
            before = [next(past) for _ in range(segment.n_recurrent)]
            held = [array for state in before for array in (state.window, state.matrix)]
            outs = segment.run([positions, wanted, self._slots[n_slots], *carried, *held])
            n_outs = len(outs) - len(held)
            after = outs[n_outs:]
            states += zip(after[::2], after[1::2], strict=True)
            if segment.attention is None:
                break
            x, *heads = outs[:n_outs]
            carried = [x, segment.attention.mix_step(Heads(*heads), groups, next(layers), n_tokens)]
        return outs[:n_outs], states

    def _segment(self, before: _Layer | None, inside: Sequence[_Layer], last: _Layer | None) -> _Segment:
        """From the rows in ``before`` (None: from the ids) to those in ``last`` (None: to the logits)."""

        def run(arrays: Arrays) -> Arrays:
            positions, wanted, slots, first, *rest = arrays
            if before is None:
                x = self._embed(first)
            else:
                mixed, *rest = rest
                x = before.end(first, mixed)
            after: Arrays = []
            for i, layer in enumerate(inside):
                assert isinstance(layer.mixer, CudaGdn)
                past = Recurrent(*rest[2 * i : 2 * i + 2])
                if slots.size:
                    entered = layer.enter(x)
                    mixed, window, matrix = layer.mixer.mix_few(entered, past, wanted, slots.size)
                else:
                    mixed, state = layer.mixer.mix_step(layer.enter(x), past)
                    window, matrix = state.window, state.matrix
                x = layer.end(x, mixed)
                after += [window, matrix]
            if last is None:
                return [*([self._last_norm(x)] if slots.size else [self._head(x), x]), *after]
            assert isinstance(last.mixer, CudaAttention)
            return [x, *last.mixer.begin_step(last.enter(x), positions), *after]

        attention = None if last is None else last.mixer
        assert attention is None or isinstance(attention, CudaAttention)
        return _Segment(mx.compile(run), len(inside), attention)
