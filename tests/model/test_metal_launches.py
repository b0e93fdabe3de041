"""What a step launches on Metal, counted in its graph, beside mlx-lm's step over the same layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from model.backend import detect
from model.checkpoint.config import config_from
from model.checkpoint.fingerprint import ModelFingerprint
from model.forward import Forward
from tests.fakes import tiny
from tests.fakes.lm_modules import random_modules
from tests.fakes.metal import MAC, metal
from tests.fakes.primitives import as_on_metal, launches

pytestmark = pytest.mark.skipif(detect().kind == "cuda", reason="functions have other kernels there")

# The layers of the real models, narrow: four to a pattern; heads as many; experts fewer.
DENSE = replace(
    tiny.DENSE,
    vocab=64,
    n_layers=8,
    n_heads=8,
    n_kv_heads=2,
    n_key_heads=16,
    n_value_heads=16,
    gdn_head_dim=32,
)
SHAPES = {
    "0.8B": DENSE,
    "4B": replace(DENSE, n_heads=16, n_kv_heads=4, n_value_heads=32),
    "35B-A3B": replace(DENSE, n_heads=16, n_value_heads=32, n_experts=8, tied=False),
}
BITS = {"bfloat16": 16, "4 bits": 4}


@pytest.fixture(autouse=True)
def mac() -> Iterator[None]:
    with metal(), as_on_metal():
        yield


def modules(raw: dict[str, Any], bits: int) -> nn.Module:
    model = random_modules(raw)
    model.set_dtype(mx.bfloat16)
    for layer in model.language_model.model.layers:
        if layer.is_linear:
            layer.linear_attn.A_log = layer.linear_attn.A_log.astype(mx.float32)
            layer.linear_attn.dt_bias = layer.linear_attn.dt_bias.astype(mx.float32)
    if bits < 16:
        nn.quantize(model, 32, bits)
    mx.eval(model.parameters())
    return model


def forward(shape: tiny.TinyShape, bits: int) -> Forward:
    raw = tiny.text_config(shape)
    fingerprint = ModelFingerprint(0, 0, "bfloat16")
    return Forward(modules(raw, bits).language_model, config_from(raw), fingerprint, MAC)


def ids(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint32)


def held(batch: Any) -> list[mx.array]:
    recurrent = [array for layer in batch._recurrent for array in (layer.window, layer.matrix)]
    return recurrent + [array for group in batch._groups for rows in group.kv for array in rows.arrays]


def our_step(model: Forward, *lengths: int) -> Counter[str]:
    batch = model.new_batch()
    for key, n in enumerate(lengths):
        state = model.new_state()
        model.prefill(state, ids(n))
        batch.join(key, state)
    tokens = mx.zeros((len(lengths),), mx.uint32)
    mx.eval(batch.step(tokens), *held(batch), tokens)
    return launches(batch.step(tokens), *held(batch))


def their_step(shape: tiny.TinyShape, bits: int) -> Counter[str]:
    model = modules(tiny.text_config(shape), bits)
    caches = make_prompt_cache(model)
    token = mx.array([[3]])
    mx.eval(model(mx.array(ids(5))[None], cache=caches), token)
    arrays = lambda: [  # noqa: E731
        array
        for cache in caches
        for array in (cache.cache if hasattr(cache, "cache") else (cache.keys, cache.values))
    ]
    mx.eval(arrays())
    return launches(model(token, cache=caches), *arrays())


@pytest.mark.parametrize("bits", BITS.values(), ids=BITS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_step_launches_no_more_than_mlx_lms(shape: tiny.TinyShape, bits: int) -> None:
    ours, theirs = our_step(forward(shape, bits), 5), their_step(shape, bits)
    assert ours.total() <= theirs.total(), f"{ours - theirs} against {theirs - ours}"


@pytest.mark.parametrize(("name", "most"), [("0.8B", 23), ("35B-A3B", 47)])
def test_launches_of_a_layer_stay_below_a_ceiling(name: str, most: int) -> None:
    model = forward(SHAPES[name], 16)
    n_layers = model.config.n_layers
    alone = our_step(model, 5).total()
    assert alone <= most * n_layers
    # Sequences of like length share every launch but those that tell them apart.
    assert our_step(model, 5, 9, 40).total() <= alone + 3 * n_layers


@pytest.mark.parametrize(("name", "more"), [("0.8B", 4), ("35B-A3B", 10)])
def test_guessed_tokens_with_all_their_states_launch_little_more_than_a_step(name: str, more: int) -> None:
    model = forward(SHAPES[name], 16)
    one = our_step(model, 5).total()
    batch, state = model.new_batch(), model.new_state()
    model.prefill(state, ids(5))
    batch.join(0, state)
    mx.eval(batch.step(mx.zeros((1,), mx.uint32)), *held(batch))
    guesses = mx.zeros((1, 6), mx.uint32)
    mx.eval(guesses)
    logits = batch.extend(guesses)
    batch.keep([3])
    assert launches(logits, *held(batch)).total() <= one + more * model.config.n_layers


def test_a_token_waits_for_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = (model := forward(DENSE, 16)).new_batch()
    for key, n in enumerate((5, 9)):
        state = model.new_state()
        model.prefill(state, ids(n))
        batch.join(key, state)
    tokens = mx.zeros((2,), mx.uint32)
    mx.eval(batch.step(tokens), *held(batch), tokens)
    one = launches(batch.step(tokens), *held(batch)).total()
    mx.eval(held(batch))
    monkeypatch.setattr(mx, "eval", None)
    for _ in range(3):
        tokens = mx.argmax(batch.step(tokens), axis=-1).astype(mx.uint32)
    # Were anything evaluated on the way, the graph would be cut there.
    assert launches(tokens, *held(batch)).total() >= 3 * one
