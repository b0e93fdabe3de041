"""What the CPU computes in NumPy, long prompts and steps, gives what array operations give."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_lm.tuner.lora import LoRALinear

from model.backend import detect
from model.batch import Members, merge
from model.checkpoint.config import ModelConfig, config_from
from model.checkpoint.load import load
from model.devices.cpu import attention, device, rows
from model.devices.cpu.attention import CpuAttention
from model.devices.cpu.gdn import CpuGdn
from model.devices.cpu.network import CpuFeedForward, CpuStep
from model.devices.cpu.operations import cpu_ops
from model.devices.cpu.rows import Crew
from model.layers.attention import Attention, StepGroup
from model.layers.gdn import Gdn
from model.layers.network import Block, FeedForward
from model.state import KvLayout, KvRows, Recurrent
from tests.fakes import tiny
from tests.fakes.lm_modules import random_modules

pytestmark = pytest.mark.skipif(detect().kind != "cpu", reason="for the CPU")

OPS, CREW = cpu_ops(), Crew(2)
HEADS = [(1, 1), (2, 2), (3, 6), (2, 6)]


def shape(heads: tuple[int, int] = (2, 4)) -> dict[str, Any]:
    small = replace(tiny.DENSE, vocab=64, n_key_heads=heads[0], n_value_heads=heads[1])
    return tiny.text_config(small) | {"linear_value_head_dim": 48}


def parts(raw: dict[str, Any], seed: int = 0) -> tuple[list[nn.Module], ModelConfig]:
    """Layers of a random model; twice the same for the same seed, since joining takes them apart."""
    mx.random.seed(seed)
    model = random_modules(raw)
    model.update(tree_map(lambda x: x + 0.2 * mx.random.normal(x.shape), model.parameters()))
    config = config_from(raw)
    return model.language_model.model.layers, config


def random(*size: int) -> mx.array:
    return mx.random.normal(size, key=mx.random.key(sum(size)))


def same(found: mx.array, wanted: mx.array) -> bool:
    return bool(mx.allclose(found, wanted, rtol=1e-4, atol=1e-5).item())


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(
    ("n_tokens", "capture_at"),
    [(1, [1]), (33, [1, 2, 3, 4, 33]), (64, [63]), (130, [64, 65, 130]), (1100, [512, 600])],
)
def test_a_gdn_layer_gives_the_outputs_and_states_of_array_operations(
    heads: tuple[int, int], n_tokens: int, capture_at: Sequence[int]
) -> None:
    raw = shape(heads)
    (first, *_), config = parts(raw)
    (again, *_), _ = parts(raw)
    past = Recurrent(
        random(1, 3, config.conv_dim), random(1, heads[1], config.value_head_dim, config.key_head_dim)
    )
    x = random(1, n_tokens, 64)
    wanted, last, captured = Gdn(first.linear_attn, config, OPS).prefill(x, past, capture_at)
    found, end, kept = CpuGdn(again.linear_attn, config, OPS, CREW).prefill(x, past, capture_at)
    assert same(found, wanted)
    for one, other in zip([*kept, end], [*captured, last], strict=True):
        assert same(one.window, other.window)
        assert same(one.matrix, other.matrix)


@pytest.mark.parametrize("kv_bits", [0, 8])
@pytest.mark.parametrize(("n_past", "n_tokens"), [(0, 1), (0, 33), (7, 32), (0, 300), (1100, 200), (511, 65)])
def test_a_full_attention_layer_gives_what_array_operations_give(
    n_past: int, n_tokens: int, kv_bits: int
) -> None:
    (*_, first), config = parts(shape())
    (*_, again), _ = parts(shape())
    layout = KvLayout(config.n_kv_heads, config.head_dim, mx.float32, kv_bits)
    ours, theirs = KvRows.empty(layout), KvRows.empty(layout)
    mine, plain = CpuAttention(again.self_attn, config, OPS, CREW), Attention(first.self_attn, config, OPS)
    for n in (n_past, n_tokens):
        if n:
            x = random(1, n, 64)
            assert same(mine.prefill(x, ours), plain.prefill(x, theirs))
            assert ours.length == theirs.length
    for one, other in zip(ours.copy(ours.length).arrays, theirs.copy(theirs.length).arrays, strict=True):
        assert same(one, other)


@pytest.mark.parametrize("n_tokens", [1, 31, 32, 33, 200])
@pytest.mark.parametrize("change", ["nothing", "4 bits", "LoRA"])
def test_a_feed_forward_block_gives_what_array_operations_give(n_tokens: int, change: str) -> None:
    blocks = [parts(shape())[0][0].mlp for _ in range(2)]
    for block in blocks:
        if change == "4 bits":
            nn.quantize(block, 32, 4)
        if change == "LoRA":
            mx.random.seed(1)
            block.up_proj = LoRALinear.from_base(block.up_proj, 4)
            block.up_proj.lora_b = random(4, 96)
    x = random(1, n_tokens, 64)
    assert same(CpuFeedForward(blocks[0], OPS, CREW)(x), FeedForward(blocks[1], OPS)(x))


@pytest.mark.parametrize("n_seqs", [1, 3, 9])
@pytest.mark.parametrize("heads", HEADS)
def test_a_step_of_a_gdn_layer_gives_what_array_operations_give(heads: tuple[int, int], n_seqs: int) -> None:
    raw = shape(heads)
    (first, *_), config = parts(raw)
    (again, *_), _ = parts(raw)
    past = Recurrent(
        random(n_seqs, 3, config.conv_dim),
        random(n_seqs, heads[1], config.value_head_dim, config.key_head_dim),
    )
    x = random(n_seqs, 64)
    wanted, theirs = Gdn(first.linear_attn, config, OPS).step(x[:, None], past)
    found, ours = CpuGdn(again.linear_attn, config, OPS, CREW).step_rows(np.array(x), past)
    assert same(mx.array(found), wanted[:, 0])
    assert same(ours.window, theirs.window)
    assert same(ours.matrix, theirs.matrix)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("kv_bits", [0, 8])
@pytest.mark.parametrize(
    "lengths", [[[0]], [[255]], [[30000]], [[40, 33, 7]], [[300], [12, 5]], [[9, 9], [700, 600]]]
)
def test_a_step_of_a_full_attention_layer_gives_what_array_operations_give(
    lengths: list[list[int]], kv_bits: int, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_LONG", 0 if shares else 1 << 40)
    (*_, first), config = parts(shape())
    (*_, again), _ = parts(shape())
    layout = KvLayout(config.n_kv_heads, config.head_dim, mx.float32, kv_bits)
    n_seqs = sum(map(len, lengths))
    # The groups' members take turns in the batch.
    order = np.argsort([i for group in lengths for i in range(len(group))], kind="stable")
    rows = np.argsort(order).astype(np.int32)

    def groups() -> list[StepGroup]:
        made, n_before = [], 0
        for group in lengths:
            singles, n_columns = [KvRows.empty(layout) for _ in group], max(group)
            for single, n in zip(singles, group, strict=True):
                if n:
                    single.append(*(random(1, 2, n, config.head_dim + i)[..., i:] for i in range(2)))
            kv = merge([Members(single) for single in singles], n_columns)
            mx.eval(*kv.arrays)
            padding = mx.array([n_columns - n for n in group], mx.int32) if len(set(group)) > 1 else None
            members = mx.array(rows[n_before : n_before + len(group)])
            made.append(StepGroup(members, [kv], n_columns, padding))
            n_before += len(group)
        return made

    mine, plain = CpuAttention(again.self_attn, config, OPS, CREW), Attention(first.self_attn, config, OPS)
    ours, theirs = groups(), groups()
    x = random(n_seqs, 64)
    found = mine.step_rows(np.array(x), ours, [mine.standing(group, 1) for group in ours], 0)
    assert same(mx.array(found), plain.step(x[:, None], theirs, 0)[:, 0])
    for one, other in zip(ours, theirs, strict=True):
        for left, right in zip(one.kv[0].copy(one.kv[0].length).arrays, other.kv[0].arrays, strict=True):
            assert same(left[:, :, : one.kv[0].length], right[:, :, : other.kv[0].length])


@pytest.mark.parametrize("n_seqs", [1, 9])
def test_a_step_of_a_feed_forward_block_gives_what_array_operations_give(n_seqs: int) -> None:
    ours, theirs = (parts(shape())[0][0].mlp for _ in range(2))
    x = random(n_seqs, 64)
    wanted = FeedForward(theirs, OPS)(x[:, None])[:, 0]
    assert same(mx.array(CpuFeedForward(ours, OPS, CREW).step_rows(np.array(x))), wanted)


@pytest.mark.parametrize("n_rows", [1, 2, 7, 8, 20])
def test_a_large_matrix_is_shared_out_without_a_gap(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_LARGE", 1000)
    monkeypatch.setattr(rows, "_SHARE", 300)
    inputs, weight = (np.array(random(n_rows, 32)), np.array(random(101, 32)).T)
    found = rows.step_multiply(inputs, weight, Crew(3))
    assert np.allclose(found, inputs @ weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", ["nothing", "4 bits", "LoRA", "experts", "untied head in 4 bits"])
def test_only_plain_matrices_step_in_numpy(change: str) -> None:
    raw = shape() if change != "experts" else tiny.text_config(replace(tiny.MOE, vocab=64))
    mx.random.seed(0)
    model = random_modules(raw).language_model
    head = nn.Linear(64, 64, bias=False)
    if change == "4 bits":
        nn.quantize(model.model.layers[1], 32, 4)
    if change == "LoRA":
        model.model.layers[3].self_attn.o_proj = LoRALinear.from_base(model.model.layers[3].self_attn.o_proj)
    if change == "untied head in 4 bits":
        head = nn.QuantizedLinear.from_linear(head, 32, 4)
    config = config_from(raw)
    blocks = [
        Block(
            CpuGdn(layer.linear_attn, config, OPS, CREW)
            if layer.is_linear
            else CpuAttention(layer.self_attn, config, OPS, CREW),
            OPS.add_norm(layer.post_attention_layernorm),
            CpuFeedForward(layer.mlp, OPS, CREW),
            OPS.add_norm(layer.input_layernorm),
        )
        for layer in model.model.layers
    ]
    assert CpuStep.takes(model.model, blocks, head) == (change == "nothing")


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 4, 23])
def test_a_crew_does_every_piece_of_work_once(size: int, n: int) -> None:
    done: list[int] = []
    Crew(size).each(done.append, n)
    assert sorted(done) == list(range(n))


def test_a_crew_works_on_several_pieces_at_once() -> None:
    all_there = threading.Barrier(3)
    Crew(3).each(lambda _: all_there.wait(timeout=30), 3)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_fault_in_one_piece_is_raised_when_the_others_are_done(failing: int) -> None:
    done: list[int] = []

    def work(i: int) -> None:
        if i == failing:
            raise ValueError(f"piece {i}")
        done.append(i)

    with pytest.raises(ValueError, match=f"piece {failing}"):
        Crew(2).each(work, 3)
    assert failing not in done


@pytest.mark.parametrize("kv_bits", [0, 8])
def test_rows_written_at_once_stand_where_appended_ones_would(kv_bits: int) -> None:
    layout = KvLayout(2, 32, mx.float32, kv_bits)
    ours, theirs = KvRows.empty(layout), KvRows.empty(layout)
    for each in (ours, theirs):
        each.append(random(1, 2, 255, 32), random(1, 2, 255, 32) + 1)
    for seed in range(3):  # the second one makes the buffers grow
        row = random(1, 2, 1, 32) + seed
        found = attention.append_rows(ours, np.array(row), -np.array(row))
        wanted = theirs.append(row, -row)
        assert ours.length == theirs.length
        assert np.array_equal(found[0], np.array(wanted[0]))
        assert np.array_equal(found[1], np.array(wanted[1]))


@pytest.mark.parametrize("kv_bits", [None, 8])
@pytest.mark.parametrize(
    ("n_tokens", "n_cores"), [(1, 2), (2, 2), (7, 2), (31, 2), (32, 3), (64, 2), (64, 3)]
)
def test_a_few_tokens_after_others_are_read_as_a_prompt_is(
    n_tokens: int, n_cores: int, kv_bits: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "n_usable_cores", lambda: n_cores)
    model = load(tiny.write_text(tmp_path), kv_bits=kv_bits)
    ids = np.random.default_rng(n_tokens).integers(0, 200, 90 + n_tokens).astype(np.uint32)
    wanted_at = sorted({90 + (n_tokens + 1) // 2, 90 + n_tokens})
    found = []
    for few_tokens in (model.few_tokens, 0):
        monkeypatch.setattr(model, "few_tokens", few_tokens)
        state = model.new_state()
        model.prefill(state, ids[:90])
        read = model.prefill(state, ids[90:], capture_at=wanted_at)
        state.check()
        arrays = [a for checkpoint in read.checkpoints for a in checkpoint.arrays]
        found.append([read.logits, *arrays, *state.snapshot().arrays])
    tolerance = 1e-4 if kv_bits is None else 2e-2
    for few, prompt in zip(*found, strict=True):
        assert mx.allclose(few, prompt, atol=tolerance).item()
