"""The multi-token prediction head: one layer that guesses the token after the next, from what the model made
of the tokens so far.

Of the token at position i the head takes the embedding, and what the model's last norm gave for the token
before it. Its row of keys and values therefore stands for the tokens up to i, as the model's own rows do; the
first token of a sequence has none. Rows take no attention to make, so a prompt costs the head two products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn

from model.layers.attention import Attention, StepGroup
from model.layers.ops import Ops

Rows = Callable[[mx.array], mx.array]


class MtpHead:
    """Reads weights from ``modules`` (:class:`model.checkpoint.mtp.MtpModules`); the rows live with the
    caller.

    Args:
        embed: the model's own, ids [B, T] to rows [B, T, H].
        attention, feed_forward: the halves of the head's layer, the latter from rows [B, T, H] to such rows.
    """

    def __init__(
        self, modules: nn.Module, ops: Ops, embed: Rows, attention: Attention, feed_forward: Rows
    ) -> None:
        (layer,) = modules.layers
        self._modules = modules
        self._ops = ops
        self._embed = embed
        self._norm_before = layer.input_layernorm
        self._attention = attention
        self._add_mixed = ops.add_norm(layer.post_attention_layernorm)
        self._feed_forward = feed_forward
        self._add_fed = ops.add_norm(modules.norm)

    def rows(self, ids: mx.array, hidden: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array]:
        """What the head remembers of tokens.

        Args:
            ids: [B, T].
            hidden: [B, T, H], of the token before each, after the model's last norm.
            offset: rows before these, one number for all sequences or [B].

        Returns:
            Keys, turned to their positions, and values, [B, Hkv, T, D].
        """
        return self._attention.keys_values(self._norm_before(self._enter(ids, hidden)), offset)

    def step(self, ids: mx.array, hidden: mx.array, groups: Sequence[StepGroup]) -> mx.array:
        """Guess what comes after T tokens of each of B sequences.

        Args:
            ids, hidden: as in :meth:`rows`.
            groups: the sequences; their one buffer grows by the tokens' rows.

        Returns:
            Rows [B, T, H]: what the model's output matrix turns into logits, and what stands for the model's
            own ``hidden`` when the next guess continues this one.
        """
        x = self._enter(ids, hidden)
        mixed = self._attention.step(self._norm_before(x), groups, 0)
        x, h = self._add_mixed(x, mixed)
        _, normed = self._add_fed(x, self._feed_forward(h))
        return normed

    def _enter(self, ids: mx.array, hidden: mx.array) -> mx.array:
        """The layer's input, [B, T, H]."""
        sides = [
            self._modules.pre_fc_norm_embedding(self._embed(ids)),
            self._modules.pre_fc_norm_hidden(hidden),
        ]
        return self._ops.apply(self._modules.fc, mx.concatenate(sides, axis=-1))
