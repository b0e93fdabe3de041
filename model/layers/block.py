"""One layer of the model: a mixer, a feed-forward half, and the sums and norms after each."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from model.layers.add_norm import AddNorm
from model.layers.attention import Attention
from model.layers.feed_forward import FeedForward
from model.layers.linear_attention import LinearAttention


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

    def feed(self, x: mx.array, mixed: mx.array) -> tuple[mx.array, mx.array]:
        """The layer's input and its mixer's outputs, [B, T, H], to its output and the normed output."""
        x, h = self.add_mixed(x, mixed)
        return self.add_fed(x, self.feed_forward(h))
