"""A decode step as a few compiled functions: one from each place where rows are appended to the next.

A step launches some two hundred kernels. Building that graph anew in Python takes as long as the GPU does; a
compiled function keeps it. The rows themselves grow at every step, so they stay outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import mlx.core as mx

from model.layers.attention import StepGroup
from model.layers.block import Block
from model.layers.cuda.full_attention import CudaAttention, Heads, positions_of
from model.layers.linear_attention import LinearAttention
from model.state import Recurrent

Embed = Callable[[mx.array], tuple[mx.array, mx.array]]
Arrays = list[mx.array]


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
    """One token to each of B sequences; see ``Forward._step``.

    Args:
        embed: ids [B, 1] to rows [B, 1, H] and the normed rows.
        blocks: the layers.
        logits: [B, 1, H] after the last norm to [B, 1, V].
    """

    def __init__(self, embed: Embed, blocks: Sequence[Block], logits: Callable[[mx.array], mx.array]) -> None:
        self._embed = embed
        self._logits = logits
        self._segments: list[_Segment] = []
        before: Block | None = None
        inside: list[Block] = []
        for block in blocks:
            if isinstance(block.mixer, CudaAttention):
                self._segments.append(self._segment(before, inside, block))
                before, inside = block, []
            else:
                inside.append(block)
        self._segments.append(self._segment(before, inside, None))

    @staticmethod
    def takes(blocks: Sequence[Block]) -> bool:
        """Whether every layer is one that can be cut where it appends rows."""
        return all(isinstance(block.mixer, LinearAttention | CudaAttention) for block in blocks)

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

    def _segment(self, before: Block | None, inside: Sequence[Block], last: Block | None) -> _Segment:
        """From the rows in ``before`` (None: from the ids) to those in ``last`` (None: to the logits)."""
        attention = None if last is None else last.mixer
        assert attention is None or isinstance(attention, CudaAttention)

        def run(arrays: Arrays) -> Arrays:
            positions, first, *rest = arrays
            if before is None:
                x, h = self._embed(first[:, None])
            else:
                assert isinstance(before.mixer, CudaAttention)
                mixed, *rest = rest
                x, h = before.feed(first, before.mixer.end_step(mixed))
            after: Arrays = []
            for i, block in enumerate(inside):
                x, h, *state = block.step_linear(x, h, *rest[2 * i : 2 * i + 2])
                after += state
            if attention is None:
                return [self._logits(h)[:, 0], *after]
            return [x, *attention.begin_step(h, positions), *after]

        return _Segment(mx.compile(run), len(inside), attention)
