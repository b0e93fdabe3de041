"""One layer of the model: a mixer, a feed-forward half, and the sums and norms after each."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from model.layers.add_norm import AddNorm
from model.layers.attention import Attention
from model.layers.feed_forward import FeedForward
from model.layers.linear_attention import LinearAttention
from model.state import Recurrent


@dataclass(frozen=True, slots=True)
class Block:
    """A layer, without the norm in front: the layer before it has run that.

    Attributes:
        mixer: what looks at other tokens.
        add_mixed: adds its outputs, and norms the sum for the feed-forward half.
        feed_forward: what looks at one token.
        add_fed: adds its outputs, and norms the sum for the next layer, or for the head.
    """

    mixer: LinearAttention | Attention
    add_mixed: AddNorm
    feed_forward: FeedForward
    add_fed: AddNorm

    def step_linear(
        self, x: mx.array, h: mx.array, window: mx.array, matrix: mx.array
    ) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """One token of a GDN layer over plain arrays, as ``mx.compile`` takes them: the layer's input
        [B, 1, H], the same normed, and the state, to its output, the normed output and the state."""
        assert isinstance(self.mixer, LinearAttention)
        mixed, state = self.mixer.step(h, Recurrent(window, matrix))
        return *self.feed(x, mixed), state.window, state.matrix

    def feed(self, x: mx.array, mixed: mx.array) -> tuple[mx.array, mx.array]:
        """The layer's input and its mixer's outputs, [B, T, H], to its output and the normed output."""
        x, h = self.add_mixed(x, mixed)
        return self.add_fed(x, self.feed_forward(h))
