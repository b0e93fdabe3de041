"""Compares each kernel of the device with MLX's plain operations, on the model's own layers and random
tokens.

A model of one or two layers is run by the device and by plain operations, with all but one part of it
silenced: the weights that would pass on the results of other parts are zero, so that a difference can be
attributed. The reference is computed in float32; a kernel's error may be a few times that of plain operations
in its own dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from model.backend import without_kernels
from model.checkpoint.config import LayerType, ModelConfig
from model.checkpoint.fingerprint import ModelFingerprint
from model.checkpoint.load import Modules, read_modules
from model.device import Device
from model.forward import Forward
from model.layers.gdn import Gdn
from model.layers.network import Network
from model.state import Checkpoint, KvLayout, State
from server.check.result import Section, apart, layer_bound, numbers

_N_VOCAB = 1024  # rows that are kept of the embedding and of the head
_N_PROMPT, _CAPTURES, _N_FEW = 200, (70, 128), 5
_LENGTHS = (200, 65, 20)  # of a batch, different so that it is padded
_N_GUESSED, _KEPT = (
    4,
    (2, 4, 1),
)  # tokens fed at once to each sequence of a batch, and how many of them are kept
_TIMES = 4.0  # a kernel's error may be so many times that of plain operations in its dtype

Results = dict[str, list[NDArray[np.float32]]]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a layer that is checked in isolation.

    Attributes:
        name: in the table.
        layers: of the model in which it is checked; the last one has the part.
        silenced: names of the linear layers that pass on the results of other parts.
        kept: what is compared of the state, besides the logits.
    """

    name: str
    layers: tuple[LayerType, ...]
    silenced: tuple[str, ...]
    kept: Literal["nothing", "recurrent", "rows"] = "nothing"


GDN: LayerType = "linear_attention"
PARTS = (
    Part("norms, embedding and head", (GDN,), ("out_proj", "down_proj")),
    Part("feed-forward", (GDN,), ("out_proj",)),
    Part("GDN layer", (GDN,), ("down_proj",), "recurrent"),
    # After a silenced layer of the other kind, because a state must have one.
    Part("attention", (GDN, "full_attention"), ("out_proj", "down_proj"), "rows"),
)


def check_kernels(path: Path, device: Device, dtype: str | None) -> Section:
    """Compare every part of a layer in every kind of pass.

    Args:
        path: the checkpoint, from which a layer of each kind is loaded.
        device: whose kernels are checked.
        dtype: to compute in; None for the device's own.
    """
    section = Section("kernels against plain operations (relative error)")
    own = read_modules(path, dtype=dtype or device.dtype)
    exact = own if own.dtype == "float32" else read_modules(path, dtype="float32")
    is_wrong: set[str] = set()
    for part in PARTS:
        if not set(part.layers) <= {*own.config.layer_types}:
            continue
        wanted = _run(exact, part, without_kernels(device))
        plain = wanted if exact is own else _run(own, part, without_kernels(device))
        for kind, found in _run(own, part, device).items():
            bound = max(layer_bound(own.dtype, device), _TIMES * apart(plain[kind], wanted[kind]))
            error = apart(found, wanted[kind])
            # What a part keeps of a prompt is what its later passes begin with.
            if kind in is_wrong or (part.kept != "nothing" and "prompt" in is_wrong):
                section.tell(f"{part.name}, {kind}", "not judged: it goes through a part that differs")
                continue
            section.judge(f"{part.name}, {kind}", error, bound)
            if not error <= bound and part is PARTS[0]:
                is_wrong.add(kind)
    return section


def _run(modules: Modules, part: Part, device: Device) -> Results:
    """The results of the passes through one layer, by the name of the pass."""
    config = _small(modules.config, part)
    rows = _rows(device.network(_few_layers(modules, part), config), modules, config)
    forward = Forward(_few_layers(modules, part), config, ModelFingerprint(0, 0, modules.dtype), device)
    results = {kind: numbers(arrays) for kind, arrays in _passes(forward, part)}
    results["prompt"] += numbers([rows])
    return results


def _rows(network: Network, modules: Modules, config: ModelConfig) -> mx.array:
    """The hidden states of all tokens after the layer, [1, T, H]; logits exist only for the last one."""
    dtype = getattr(mx, modules.dtype)
    state = State.empty(config, KvLayout(config.n_kv_heads, config.head_dim, dtype))
    ids = np.random.default_rng(4).integers(0, config.vocab_size, (1, _N_PROMPT), dtype=np.uint32)
    x, h = network.embed(mx.array(ids))
    for block in network.blocks:
        if isinstance(block.mixer, Gdn):
            mixed, _, _ = block.mixer.prefill(h, state.recurrent[0], _CAPTURES)
        else:
            mixed = block.mixer.prefill(h, state.kv[0])
        x, h = block.feed(x, mixed)
    return h


def _passes(forward: Forward, part: Part) -> Iterator[tuple[str, list[mx.array]]]:
    random = np.random.default_rng(0)

    def ids(*shape: int) -> NDArray[np.uint32]:
        return random.integers(0, forward.config.vocab_size, shape, dtype=np.uint32)

    def recurrent(checkpoints: Iterable[Checkpoint]) -> list[mx.array]:
        return [a for c in checkpoints for a in c.arrays] if part.kept == "recurrent" else []

    state = forward.new_state()
    read = forward.prefill(state, ids(_N_PROMPT), capture_at=_CAPTURES)
    rows = [a for kv in state.kv for a in kv.append(*_no_rows(forward))] if part.kept == "rows" else []
    yield "prompt", [read.logits, *recurrent([*read.checkpoints, state.snapshot()]), *rows]
    few = forward.prefill(state, ids(_N_FEW), capture_at=[_N_PROMPT + 2])
    yield "a few tokens", [few.logits, *recurrent([*few.checkpoints, state.snapshot()])]
    batch = forward.new_batch()
    batch.join(0, state)
    logits = [batch.step(mx.array(ids(1))) for _ in range(3)]
    yield "step", [*logits, *recurrent([batch.snapshot(0)])]
    together, keys = forward.new_batch(), range(len(_LENGTHS))
    for key in keys:
        member = forward.new_state()
        forward.prefill(member, ids(_LENGTHS[key]))
        together.join(key, member)
    logits = [together.step(mx.array(ids(len(keys)))) for _ in range(3)]
    yield "batch", [*logits, *recurrent(map(together.snapshot, keys))]
    guessed = together.extend(mx.array(ids(len(keys), _N_GUESSED)))
    together.keep(_KEPT)
    after = together.step(mx.array(ids(len(keys))))
    yield "guessed tokens", [guessed, after, *recurrent(map(together.snapshot, keys))]


def _no_rows(forward: Forward) -> tuple[mx.array, mx.array]:
    """Appends no rows: keys and values stay as they are."""
    layout = forward.kv_layout
    nothing = mx.zeros((1, layout.n_heads, 0, layout.head_dim), layout.dtype)
    return nothing, nothing


def _small(config: ModelConfig, part: Part) -> ModelConfig:
    n_vocab = min(_N_VOCAB, config.vocab_size)
    return replace(config, n_layers=len(part.layers), layer_types=part.layers, vocab_size=n_vocab)


def _few_layers(modules: Modules, part: Part) -> nn.Module:
    """mlx-lm's language model with one layer of each kind in the part's ``layers``, a small vocabulary, and
    the silenced weights; it shares only weights with ``modules``."""
    config = modules.config
    model = _twin(modules.model.language_model)
    layers = model.model.layers
    model.model.layers = [layers[config.layer_types.index(kind)] for kind in part.layers]
    for holder, name in ((model.model, "embed_tokens"), (model, "lm_head")):
        if name in holder:
            _map(holder[name], lambda w: w[:_N_VOCAB])
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] in part.silenced:
            _map(layer, mx.zeros_like)
    mx.eval(model.parameters())
    return model


def _twin(value: Any) -> Any:
    """A copy of the modules, over the same arrays."""
    if isinstance(value, nn.Module):
        twin = copy.copy(value)
        for name, part in value.items():
            twin[name] = _twin(part)
        return twin
    return [_twin(part) for part in value] if isinstance(value, list) else value


def _map(layer: nn.Module, change: Callable[[mx.array], mx.array]) -> None:
    """Replace the arrays of a linear layer or an embedding, quantized or not."""
    for name in ("weight", "scales", "biases", "bias", "global_scale"):
        if layer.get(name) is not None:
            layer[name] = change(layer[name])
