"""The mixture of experts as CUDA computes it outside its kernels gives what mlx-lm's block gives."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from model.devices.cuda import mixture
from model.devices.cuda.mixture import Mixture
from model.layers.ops import Ops, apply_unpacked
from tests.fakes import tiny
from tests.fakes.lm_modules import random_modules

RAW = tiny.text_config(tiny.MOE) | {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}


def sparse_block(bits: int) -> nn.Module:
    mx.random.seed(0)
    block: nn.Module = random_modules(RAW).language_model.model.layers[0].mlp
    # Router logits far apart: a sum in another order chooses the same experts.
    block.gate.weight = 3 * mx.random.normal(block.gate.weight.shape)
    if bits < 16:
        nn.quantize(block, 32, bits)
    mx.eval(block.parameters())
    return block


def ours(block: nn.Module) -> Mixture:
    mine = copy.deepcopy(block)
    return Mixture(mine, Ops(apply=apply_unpacked), uses_kernels=False)


def assert_near(found: mx.array, wanted: mx.array) -> None:
    assert found.shape == wanted.shape
    assert np.abs(np.array(found) - np.array(wanted)).max() < 1e-5 * np.abs(np.array(wanted)).max()


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 70)])
@pytest.mark.parametrize("most", [0, 10_000], ids=["sorted", "one by one"])
def test_every_token_gets_what_its_experts_give(
    bits: int, shape: tuple[int, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixture, "_FEW_PAIRS", most)
    block = sparse_block(bits)
    x = mx.random.normal((*shape, tiny.MOE.hidden), key=mx.random.key(1))
    assert_near(ours(block)(x), block(x))


def test_shares_are_used_as_they_are_where_the_model_does_not_normalise_them() -> None:
    block = sparse_block(16)
    block.norm_topk_prob = False
    x = mx.random.normal((1, 9, tiny.MOE.hidden), key=mx.random.key(1))
    assert_near(ours(block)(x), block(x))


def test_experts_nobody_chooses_and_one_that_all_choose_are_sorted_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixture, "_FEW_PAIRS", 0)
    block = sparse_block(4)
    x = mx.broadcast_to(mx.random.normal((tiny.MOE.hidden,), key=mx.random.key(1)), (1, 40, tiny.MOE.hidden))
    assert_near(ours(block)(x), block(x))


def test_quantised_experts_are_unpacked_for_a_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[tuple[int, ...]] = []
    dequantize = mx.dequantize

    def counted(weight: mx.array, *rest: Any) -> mx.array:
        unpacked.append(weight.shape)
        out: mx.array = dequantize(weight, *rest)
        return out

    monkeypatch.setattr(mx, "dequantize", counted)
    layer = ours(sparse_block(4))
    unpacked.clear()
    mx.eval(layer(mx.ones((1, 3, tiny.MOE.hidden))))
    assert [shape for shape in unpacked if len(shape) == 3] == []
    mx.eval(layer(mx.ones((1, mixture._FEW_PAIRS, tiny.MOE.hidden))))
    assert len([shape for shape in unpacked if len(shape) == 3]) == 2
