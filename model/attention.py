"""One full-attention layer: gated output, q and k norms, partial rotary positions, grouped queries."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from model.config import ModelConfig
from model.elementwise import Elementwise
from model.kv import KvRows
from model.projection import Projection
from model.softmax_attention import Attend, Mask


class Attention:
    """Reads weights from ``block`` (mlx-lm's modules); the rows live with the caller."""

    def __init__(self, block: nn.Module, config: ModelConfig, attend: Attend, math: Elementwise) -> None:
        self._block = block
        self._attend = attend
        self._math = math
        self._inputs = Projection(block, ["q_proj", "k_proj", "v_proj"])
        self._n_heads = config.n_heads
        self._n_kv_heads = config.n_kv_heads
        self._scale = config.head_dim**-0.5

    def __call__(self, x: mx.array, rows: KvRows, offset: int | mx.array, mask: Mask) -> mx.array:
        """Append T tokens to each of B sequences and attend over everything.

        Args:
            x: [B, T, H].
            rows: grows by T.
            offset: position of the first of the T tokens; one for all, or [B].
            mask: ``causal``, None, or [B, 1, 1, length] with True where a row may be seen.

        Returns:
            [B, T, H].
        """
        n_seqs, n_tokens, _ = x.shape
        q, k, v = self._inputs(x)
        q, gate = mx.split(q.reshape(n_seqs, n_tokens, self._n_heads, -1), 2, axis=-1)
        k, v = (rows_.reshape(n_seqs, n_tokens, self._n_kv_heads, -1) for rows_ in (k, v))
        q = self._block.rope(self._block.q_norm(q).transpose(0, 2, 1, 3), offset=offset)
        k = self._block.rope(self._block.k_norm(k).transpose(0, 2, 1, 3), offset=offset)
        keys, values = rows.append(k, v.transpose(0, 2, 1, 3))
        out = self._attend(q, keys, values, self._scale, mask)
        out = out.transpose(0, 2, 1, 3).reshape(n_seqs, n_tokens, -1)
        mixed: mx.array = self._block.o_proj(out * self._math.sigmoid(gate.reshape(out.shape)))
        return mixed
