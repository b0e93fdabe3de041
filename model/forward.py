"""The model as a function: ids and a state in, logits and the state further on out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from model.backend import BackendKind
from model.batch import DecodeBatch
from model.checkpoint.config import ModelConfig
from model.checkpoint.fingerprint import ModelFingerprint
from model.checkpoint.weights import parameters
from model.device import device_for
from model.kv import KvLayout, capacity_for
from model.layers.attention import Attention, StepGroup
from model.layers.feed_forward import FeedForward
from model.layers.gdn import CHUNK
from model.layers.linear_attention import LinearAttention
from model.state import Checkpoint, Recurrent, State

# Tokens a pass takes at once, a multiple of the GDN chunk: enough for the matrix products to run at
# full speed, few enough for the temporaries to stay small (and, on the CPU, near its caches).
_PART_TOKENS: dict[BackendKind, int] = {"cpu": 512, "metal": 2048, "cuda": 4096}


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a prefill leaves besides the state.

    Attributes:
        logits: [V] after the last token, float32.
        checkpoints: the recurrent states asked for, ascending.
    """

    logits: mx.array
    checkpoints: tuple[Checkpoint, ...]


class Forward:
    """The weights of one model and the passes over them; holds nothing of any sequence.

    Everything here runs on the one thread that loaded the weights.
    """

    def __init__(
        self, model: nn.Module, config: ModelConfig, fingerprint: ModelFingerprint, kind: BackendKind
    ) -> None:
        self.config = config
        self.fingerprint = fingerprint
        self.part_tokens = _PART_TOKENS[kind]
        device = device_for(kind, config)
        self._mixers: list[LinearAttention | Attention] = [
            LinearAttention(layer.linear_attn, config, device)
            if type_ == "linear_attention"
            else Attention(layer.self_attn, config, device)
            for layer, type_ in zip(model.model.layers, config.layer_types, strict=True)
        ]
        self._feed_forward = [FeedForward(layer.mlp, device) for layer in model.model.layers]
        self._model = model
        self.n_weight_bytes = sum(w.nbytes for w in parameters(model).values())
        self.kv_layout = KvLayout(
            config.n_kv_heads, config.head_dim, getattr(mx, fingerprint.dtype), fingerprint.kv_bits
        )

    def new_state(self) -> State:
        """The state before any token."""
        return State.empty(self.config, self.kv_layout)

    def state_bytes(self, n_tokens: int) -> int:
        """Bytes of a state that stands for ``n_tokens``."""
        rows = self.config.n_full_attention_layers * capacity_for(n_tokens)
        return self.new_state().n_bytes + rows * self.kv_layout.row_bytes

    def new_batch(self) -> DecodeBatch:
        """A batch without sequences."""
        return DecodeBatch(self._step)

    def warm_up(self) -> None:
        """Build the kernels that MLX compiles on first use, so that no request waits for them."""
        state, batch = self.new_state(), self.new_batch()
        self.prefill(state, np.zeros(CHUNK + 1, np.uint32))
        batch.join(0, state)
        mx.eval(batch.step(mx.zeros((1,), mx.uint32)))

    def prefill(self, state: State, ids: NDArray[np.uint32], *, capture_at: Sequence[int] = ()) -> Prefilled:
        """Feed ``ids`` to ``state``.

        Args:
            ids: [n] token ids, n >= 1.
            capture_at: absolute positions p, state.length < p <= state.length + n, ascending, after
                which the recurrent states are wanted. They do not cut the pass.

        Returns:
            The logits of the last position and the checkpoints. They and the state are evaluated.
        """
        state.check()
        start, end = state.length, state.length + len(ids)
        assert len(ids) >= 1
        assert all(a < b for a, b in zip((start, *capture_at), (*capture_at, end + 1), strict=True))
        checkpoints: list[Checkpoint] = []
        hidden = None
        for first in range(start, end, self.part_tokens):
            last = min(first + self.part_tokens, end)
            wanted = [p for p in capture_at if first < p <= last]
            part = mx.array(ids[first - start : last - start])[None]
            hidden, captured = self._prefill_part(state, part, wanted)
            mx.eval(hidden, *state.arrays, *(a for checkpoint in captured for a in checkpoint.arrays))
            checkpoints += captured
        assert hidden is not None
        logits = self._logits(hidden[:, -1:])[0, 0]
        mx.eval(logits)
        return Prefilled(logits, tuple(checkpoints))

    def _prefill_part(
        self, state: State, ids: mx.array, capture_at: Sequence[int]
    ) -> tuple[mx.array, list[Checkpoint]]:
        """One pass over ids [1, T]: hidden rows [1, T, H] and the checkpoints, all lazy."""
        start, n_tokens = state.length, ids.shape[1]
        inside = [p - start for p in capture_at]
        captured: list[list[Recurrent]] = []
        rows, recurrent = iter(state.kv), iter(state.recurrent)
        after: list[Recurrent] = []
        x = self._model.model.embed_tokens(ids)
        for layer, mixer, feed_forward in self._layers():
            h = layer.input_layernorm(x)
            if isinstance(mixer, LinearAttention):
                mixed, end, layer_captured = mixer.prefill(h, next(recurrent), inside)
                after.append(end)
                captured.append(layer_captured)
            else:
                mixed = mixer.prefill(h, next(rows))
            x = x + mixed
            x = x + feed_forward(layer.post_attention_layernorm(x))
        state.recurrent = after
        state.position += n_tokens
        return x, [Checkpoint(p, tuple(layer[i] for layer in captured)) for i, p in enumerate(capture_at)]

    def _step(self, ids: mx.array, groups: Sequence[StepGroup], recurrent: list[Recurrent]) -> mx.array:
        """One token to each of B sequences, lazily: ids [B] to logits [B, V]; the states advance."""
        n_full = n_linear = 0
        x = self._model.model.embed_tokens(ids[:, None])
        for layer, mixer, feed_forward in self._layers():
            h = layer.input_layernorm(x)
            if isinstance(mixer, LinearAttention):
                mixed, recurrent[n_linear] = mixer.step(h, recurrent[n_linear])
                n_linear += 1
            else:
                mixed = mixer.step(h, groups, n_full)
                n_full += 1
            x = x + mixed
            x = x + feed_forward(layer.post_attention_layernorm(x))
        return self._logits(x)[:, 0]

    def _layers(self) -> Iterator[tuple[nn.Module, LinearAttention | Attention, FeedForward]]:
        return zip(self._model.model.layers, self._mixers, self._feed_forward, strict=True)

    def _logits(self, hidden: mx.array) -> mx.array:
        """[B, T, H] to [B, T, V] in float32."""
        x = self._model.model.norm(hidden)
        tied = self.config.tie_word_embeddings
        out: mx.array = self._model.model.embed_tokens.as_linear(x) if tied else self._model.lm_head(x)
        return out.astype(mx.float32)
