"""The model as a function: ids and a state in, logits and the state further on out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from model.backend import BackendKind
from model.batch import DecodeBatch
from model.checkpoint.config import LayerType, ModelConfig
from model.checkpoint.fingerprint import ModelFingerprint
from model.checkpoint.weights import parameters
from model.device import Device, device_for
from model.devices.cpu.feed_forward import CpuFeedForward
from model.devices.cpu.full_attention import CpuAttention
from model.devices.cpu.linear_attention import CpuLinearAttention
from model.devices.cpu.step import CpuStep
from model.devices.cuda.compiled_step import CompiledStep
from model.devices.cuda.full_attention import CudaAttention
from model.devices.cuda.linear_attention import CudaLinearAttention
from model.kv import KvLayout, capacity_for
from model.layers.attention import Attention, StepGroup
from model.layers.block import Block
from model.layers.feed_forward import FeedForward
from model.layers.gdn import CHUNK
from model.layers.linear_attention import LinearAttention
from model.parts import part_tokens, temporary_bytes
from model.state import Checkpoint, Recurrent, State

# Batches whose steps take kernels that those before them do not: alone, padded, of more than 16 rows.
_WARM_SIZES: dict[BackendKind, tuple[int, ...]] = {"cpu": (1,), "metal": (1,), "cuda": (1, 2, 17)}


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

    Attributes:
        part_tokens: of a prompt, those that a pass takes at once.
        steps_on_host: the logits of a step are computed, in the host's memory, when it returns.
    """

    def __init__(
        self, model: nn.Module, config: ModelConfig, fingerprint: ModelFingerprint, kind: BackendKind
    ) -> None:
        self.config = config
        self.fingerprint = fingerprint
        self._kind = kind
        device = device_for(kind, config)
        layers = model.model.layers
        norms = [*(layer.input_layernorm for layer in layers[1:]), model.model.norm]
        self._blocks = [
            Block(
                _mixer(layer, type_, config, device),
                device.add_norm(layer.post_attention_layernorm),
                (CpuFeedForward if device.kind == "cpu" else FeedForward)(layer.mlp, device),
                device.add_norm(norm_after),
            )
            for layer, type_, norm_after in zip(layers, config.layer_types, norms, strict=True)
        ]
        self._head = _head(model, config)
        self._apply = device.apply
        self._model = model
        # Fused where MLX can: an eighth of a step on the CPU. Metal would fuse as well, but was not measured.
        linear = [block.step_linear for block in self._blocks if isinstance(block.mixer, LinearAttention)]
        self._linear_steps = [mx.compile(step) for step in linear] if device.kind == "cpu" else linear
        self._whole_step: CompiledStep | CpuStep | None = None
        if device.kind == "cuda" and CompiledStep.takes(self._blocks):
            self._whole_step = CompiledStep(model.model, self._blocks, self._head, device)
        if device.kind == "cpu" and CpuStep.takes(model.model, self._blocks, self._head):
            self._whole_step = CpuStep(model.model, self._blocks, self._head, device.crew)
        self.steps_on_host = isinstance(self._whole_step, CpuStep)
        weights = parameters(model)
        self.n_weight_bytes = sum(w.nbytes for w in weights.values())
        self._token_bytes = temporary_bytes(kind, config, weights, getattr(mx, fingerprint.dtype))
        self.part_tokens = part_tokens(kind, self._token_bytes)
        self.kv_layout = KvLayout(
            config.n_kv_heads, config.head_dim, getattr(mx, fingerprint.dtype), fingerprint.kv_bits
        )

    def fit_parts(self, n_bytes: int) -> None:
        """Let a pass take as many tokens at once as ``n_bytes`` hold the temporaries of."""
        self.part_tokens = part_tokens(self._kind, self._token_bytes, n_bytes)

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
        """Build the kernels that are compiled on first use, so that no request waits for them."""
        for size in _WARM_SIZES[self._kind]:
            batch = self.new_batch()
            for key in range(size):
                state = self.new_state()
                ids = np.zeros(1 if key else CHUNK + 1, np.uint32)
                self.prefill(state, ids, capture_at=[1])
                batch.join(key, state)
            mx.eval(batch.step(mx.zeros((size,), mx.uint32)))

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
        x, h = self._embed(ids)
        for block in self._blocks:
            if isinstance(block.mixer, LinearAttention):
                mixed, end, layer_captured = block.mixer.prefill(h, next(recurrent), inside)
                after.append(end)
                captured.append(layer_captured)
            else:
                mixed = block.mixer.prefill(h, next(rows))
            x, h = block.feed(x, mixed)
        state.recurrent = after
        state.position += n_tokens
        return h, [Checkpoint(p, tuple(layer[i] for layer in captured)) for i, p in enumerate(capture_at)]

    def _step(self, ids: mx.array, groups: Sequence[StepGroup], recurrent: list[Recurrent]) -> mx.array:
        """One token to each of B sequences: ids [B], lazy, to logits [B, V]; the states advance."""
        if self._whole_step is not None:
            return self._whole_step(ids, groups, recurrent)
        n_full = n_linear = 0
        x, h = self._embed(ids[:, None])
        for block in self._blocks:
            if isinstance(block.mixer, LinearAttention):
                past = recurrent[n_linear]
                x, h, *after = self._linear_steps[n_linear](x, h, past.window, past.matrix)
                recurrent[n_linear] = Recurrent(*after)
                n_linear += 1
            else:
                x, h = block.feed(x, block.mixer.step(h, groups, n_full))
                n_full += 1
        return self._logits(h)[:, 0]

    def _embed(self, ids: mx.array) -> tuple[mx.array, mx.array]:
        """ids [B, T] to rows [B, T, H], and those after the first norm."""
        x = self._model.model.embed_tokens(ids)
        return x, self._model.model.layers[0].input_layernorm(x)

    def _logits(self, hidden: mx.array) -> mx.array:
        """[B, T, H] after the last norm to [B, T, V] in float32."""
        return self._apply(self._head, hidden).astype(mx.float32)


def _mixer(
    layer: nn.Module, type_: LayerType, config: ModelConfig, device: Device
) -> LinearAttention | Attention:
    """The layer's mixer, as kernels of our own where the device has them for its shapes."""
    if device.kind == "cpu" and type_ == "linear_attention":
        return CpuLinearAttention(layer.linear_attn, config, device)
    if device.kind == "cpu":
        return CpuAttention(layer.self_attn, config, device)
    if type_ == "linear_attention":
        fused = device.kind == "cuda" and CudaLinearAttention.takes(config)
        return (CudaLinearAttention if fused else LinearAttention)(layer.linear_attn, config, device)
    fused = device.kind == "cuda" and CudaAttention.takes(layer.self_attn, config)
    return (CudaAttention if fused else Attention)(layer.self_attn, config, device)


def _head(model: nn.Module, config: ModelConfig) -> nn.Module:
    """The layer from hidden rows [..., H] to logits [..., V]."""
    if not config.tie_word_embeddings:
        head: nn.Module = model.lm_head
        return head
    embedding = model.model.embed_tokens
    if type(embedding) is nn.Embedding:
        tied = nn.Linear(1, 1, bias=False)
    elif type(embedding) is nn.QuantizedEmbedding:
        form = {"group_size": embedding.group_size, "bits": embedding.bits, "mode": embedding.mode}
        # A matrix of one group cannot be packed in every mode, and it is only there to be exchanged.
        tied = nn.QuantizedLinear(2 * embedding.group_size, 1, bias=False, **form)
    else:
        return _Tied(embedding)
    for name in ("weight", "scales", "biases"):
        if embedding.get(name) is not None:
            tied[name] = embedding[name]
    return tied


class _Tied(nn.Module):  # type: ignore[misc]  # mlx has no types
    """The head over an embedding that is neither plain nor quantised (LoRA)."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self._embedding = embedding

    def __call__(self, x: mx.array) -> mx.array:
        logits: mx.array = self._embedding.as_linear(x)
        return logits
