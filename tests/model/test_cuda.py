"""The CUDA kernels give what array operations give: on a GPU, or else thread by thread on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_lm.models.switch_layers import SwitchGLU

from model import batch as batch_module
from model.backend import detect
from model.checkpoint.config import ModelConfig, config_from
from model.checkpoint.fingerprint import ModelFingerprint
from model.devices.cpu.device import CpuDevice
from model.devices.cuda import device as cuda_device
from model.devices.cuda.device import CudaDevice
from model.devices.cuda.gdn import CudaGdn
from model.devices.cuda.kernels import attention_prompt, few_experts, kernel
from model.devices.cuda.kernels.attention_step import AttentionShape, AttentionWeights, decode
from model.devices.cuda.kernels.few_rows import Norm, matrix_of, multiply
from model.devices.cuda.kernels.pointwise import add_norm, swiglu
from model.devices.cuda.product import Product
from model.forward import Forward, Part
from model.layers.ops import Projection
from model.state import State
from tests.fakes import cuda_emulator, tiny
from tests.fakes.lm_modules import random_modules

pytestmark = pytest.mark.skipif(
    detect().kind != "cuda" and not cuda_emulator.is_available(), reason="neither a GPU nor a C++ compiler"
)

CPU, CUDA = CpuDevice("a CPU", 2**34, 2), CudaDevice("a GPU", 2**34)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are built for the GPU, or emulated where there is none: at once, so nothing is compiled."""
    if detect().kind == "cuda":
        yield
        return
    monkeypatch.setattr(kernel, "launch", cuda_emulator.launch)
    mx.disable_compile()
    yield
    mx.enable_compile()


def shape(
    gdn_heads: tuple[int, int], gdn_dim: int, heads: tuple[int, int], head_dim: int, n_experts: int = 0
) -> dict[str, Any]:
    small = tiny.TinyShape(
        vocab=64,
        n_heads=heads[0],
        n_kv_heads=heads[1],
        head_dim=head_dim,
        n_key_heads=gdn_heads[0],
        n_value_heads=gdn_heads[1],
        gdn_head_dim=gdn_dim,
        n_experts=n_experts,
        tied=n_experts == 0,
    )
    rope = {"type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    return tiny.text_config(small) | {"rope_parameters": rope}


SHAPES = {
    "like the demo model": shape((2, 2), 64, (2, 1), 64),
    "more value heads, wide attention": shape((1, 2), 64, (4, 1), 128),
    "experts": shape((2, 2), 64, (2, 1), 64, n_experts=8),
}


def both(
    raw: dict[str, Any], dtype: mx.Dtype = mx.float32, bits: int = 16
) -> tuple[Forward, Forward, ModelConfig]:
    """The passes as array operations in float32 on the CPU and as kernels, over equal random weights."""
    mx.random.seed(0)
    models = [random_modules(raw) for _ in range(2)]
    for layer in models[0].language_model.model.layers:
        if layer.is_linear:
            layer.linear_attn.norm.weight = 1.0 + 0.1 * mx.random.normal(layer.linear_attn.norm.weight.shape)
            layer.linear_attn.conv1d.weight = mx.random.normal(layer.linear_attn.conv1d.weight.shape)
        else:
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                norm.weight = 1.0 + 0.1 * mx.random.normal(norm.weight.shape)
    models[0].set_dtype(dtype)
    if bits < 16:
        nn.quantize(models[0], 32, bits)
        nn.quantize(models[1], 32, bits)
    models[1].update(tree_map(lambda x: x + 0, models[0].parameters()))
    models[0].set_dtype(mx.float32)
    mx.eval(models[0].parameters(), models[1].parameters())
    config = config_from(raw)
    name = "float32" if dtype == mx.float32 else "bfloat16"
    with mx.stream(mx.cpu):
        plain = Forward(models[0].language_model, config, ModelFingerprint(0, 0, "float32"), CPU)
    return plain, Forward(models[1].language_model, config, ModelFingerprint(0, 0, name), CUDA), config


def ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, n).astype(np.uint32)


# A GPU's exponentials and roots are approximations, and it sums in another order.
TOLERANCE = 2e-4 if detect().kind == "cuda" else 2e-5


def assert_near(found: mx.array, wanted: mx.array, tolerance: float = TOLERANCE) -> None:
    a, b = np.array(found.astype(mx.float32)), np.array(wanted.astype(mx.float32))
    assert np.isfinite(a).all()
    assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


def assert_same_state(found: State, wanted: State) -> None:
    assert found.length == wanted.length
    for a, b in zip(found.recurrent, wanted.recurrent, strict=True):
        assert_near(a.window, b.window)
        assert_near(a.matrix, b.matrix)
    for mine, theirs in zip(found.kv, wanted.kv, strict=True):
        for left, right in zip(mine.copy(mine.length).arrays, theirs.copy(theirs.length).arrays, strict=True):
            assert_near(left[:, :, : mine.length], right[:, :, : mine.length])


@pytest.mark.parametrize("name", SHAPES)
def test_a_prompt_in_parts_gives_the_same_logits_states_and_captures(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_prompt, "_MOST_ROWS", 100)  # several blocks of queries
    plain, fused, _ = both(SHAPES[name])
    mine, theirs = fused.new_state(), plain.new_state()
    # Parts shorter than the convolution, than a chunk, of whole chunks; captures at borders and inside.
    for n, wanted in ((2, (1, 2)), (130, (3, 64, 66, 100, 130)), (64, ()), (1, (197,))):
        part = ids(n, seed=n)
        at = [p for p in wanted if mine.length < p <= mine.length + n]
        found = fused.prefill(mine, part, capture_at=at)
        with mx.stream(mx.cpu):
            expected = plain.prefill(theirs, part, capture_at=at)
        assert_near(found.logits, expected.logits)
        assert_same_state(mine, theirs)
        for a, b in zip(found.checkpoints, expected.checkpoints, strict=True):
            assert a.length == b.length
            for left, right in zip(a.layers, b.layers, strict=True):
                assert_near(left.window, right.window)
                assert_near(left.matrix, right.matrix)


RAGGED = [(0, 130, (3, 64, 130)), (70, 1, (71,)), (5, 61, ()), (0, 64, (63,))]


def ragged_parts(forward: Forward) -> list[Part]:
    parts = []
    for i, (n_past, n, captures) in enumerate(RAGGED):
        state = forward.new_state()
        if n_past:
            forward.prefill(state, ids(n_past, seed=i))
        parts.append(Part(state, ids(n, seed=10 + i), captures))
    return parts


@pytest.mark.parametrize("name", SHAPES)
def test_prompts_of_unlike_lengths_in_one_pass_give_what_array_operations_give_each_alone(name: str) -> None:
    plain, fused, _ = both(SHAPES[name])
    parts = ragged_parts(fused)
    read = fused.prefill_together(parts)
    with mx.stream(mx.cpu):
        singles = ragged_parts(plain)
        alone = [plain.prefill(p.state, p.ids, capture_at=p.capture_at) for p in singles]
    for part, own, single, there in zip(parts, read, singles, alone, strict=True):
        assert_near(own.logits, there.logits)
        assert_same_state(part.state, single.state)
        for a, b in zip(own.checkpoints, there.checkpoints, strict=True):
            assert a.length == b.length
            for left, right in zip(a.layers, b.layers, strict=True):
                assert_near(left.window, right.window)
                assert_near(left.matrix, right.matrix)


def test_what_fills_a_chunk_changes_no_state_and_would_be_seen_if_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, fused, _ = both(SHAPES["like the demo model"])

    def states() -> list[mx.array]:
        parts = ragged_parts(fused)
        fused.prefill_together(parts)
        return [layer.matrix for part in parts for layer in part.state.recurrent]

    wanted = []
    for part in ragged_parts(fused):
        fused.prefill(part.state, part.ids)
        wanted += [layer.matrix for layer in part.state.recurrent]

    def error() -> float:
        return max(float(mx.abs(a - b).max()) for a, b in zip(states(), wanted, strict=True))

    assert error() < 1e-4
    inert = CudaGdn._inert
    with monkeypatch.context() as patch:  # gates that are open in the rows between two sequences
        patch.setattr(CudaGdn, "_inert", lambda self, windows: mx.maximum(inert(self, windows), 0.0))
        opened = error()
    with monkeypatch.context() as patch:  # windows that are not those of the sequences
        patch.setattr(CudaGdn, "_inert", lambda self, windows: inert(self, mx.zeros_like(windows)))
        emptied = error()
    assert min(opened, emptied) > 1e-3


def test_a_prompt_after_a_cut_does_not_see_what_stood_there() -> None:
    plain, fused, _ = both(SHAPES["more value heads, wide attention"])
    logits = []
    for forward in (fused, plain):
        with mx.stream(mx.gpu if forward is fused and detect().kind == "cuda" else mx.cpu):
            state = forward.new_state()
            (checkpoint,) = forward.prefill(state, ids(90), capture_at=(37,)).checkpoints
            state.restore(checkpoint)
            logits.append(forward.prefill(state, ids(5, seed=1)).logits)
            mx.eval(logits)
    assert_near(*logits)


@pytest.mark.parametrize("n_behind", [0, 27])
def test_queries_in_blocks_attend_to_no_key_behind_their_own(
    n_behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_prompt, "_MOST_ROWS", 64)
    n_queries, n_keys = 150, 229
    q = mx.random.normal((1, 4, n_queries, 64))
    keys, values = (mx.random.normal((1, 2, n_keys + n_behind, 64)) for _ in range(2))
    found = attention_prompt.attend_causal(q, keys, values, n_keys, 0.3)
    with mx.stream(mx.cpu):
        within = (side[:, :, :n_keys] for side in (keys, values))
        wanted = mx.fast.scaled_dot_product_attention(q, *within, scale=0.3, mask="causal")
    assert_near(found, wanted, 1e-5)


@pytest.mark.parametrize(("name", "small"), [(name, small) for name in SHAPES for small in (1024, 8)])
def test_sequences_of_unlike_lengths_decode_as_they_do_with_array_operations(
    name: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "_SMALL", small)  # in one padded group, or in two
    plain, fused, _ = both(SHAPES[name])
    logits = []
    for forward in (fused, plain):
        with mx.stream(mx.gpu if forward is fused and detect().kind == "cuda" else mx.cpu):
            batch = forward.new_batch()
            for key, n in enumerate((150, 3, 70)):
                state = forward.new_state()
                forward.prefill(state, ids(n, seed=key))
                batch.join(key, state)
            found = [batch.step(mx.array([5, 6, 7], mx.uint32)) for _ in range(3)]
            mx.eval(found)
            logits.append(found)
    for a, b in zip(*logits, strict=True):
        assert_near(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("n", [2, 20])
def test_a_few_tokens_after_others_give_the_same_logits_states_and_captures(name: str, n: int) -> None:
    plain, fused, _ = both(SHAPES[name])
    found = []
    for forward in (fused, plain):
        with mx.stream(mx.gpu if forward is fused and detect().kind == "cuda" else mx.cpu):
            state = forward.new_state()
            forward.prefill(state, ids(70))
            few = forward.prefill(state, ids(n, seed=1), capture_at=sorted({70 + (n + 1) // 2, 70 + n}))
            then = forward.prefill(state, ids(3, seed=2))
            mx.eval(then.logits)
            state.check()
            found.append((few, then, state))
    (few, then, state), (plain_few, plain_then, plain_state) = found
    assert_near(few.logits, plain_few.logits)
    assert_near(then.logits, plain_then.logits)
    assert_same_state(state, plain_state)
    for a, b in zip(few.checkpoints, plain_few.checkpoints, strict=True):
        assert a.length == b.length
        for left, right in zip(a.arrays, b.arrays, strict=True):
            assert_near(left, right)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("n_tokens", [5, 9])
def test_tokens_that_are_taken_back_leave_no_trace(name: str, n_tokens: int) -> None:
    plain, fused, _ = both(SHAPES[name])
    logits = []
    for forward in (fused, plain):
        with mx.stream(mx.gpu if forward is fused and detect().kind == "cuda" else mx.cpu):
            batch = forward.new_batch()
            for key, n in enumerate((150, 3)):
                state = forward.new_state()
                forward.prefill(state, ids(n, seed=key))
                batch.join(key, state)
            found = [batch.step(mx.array([5, 6], mx.uint32))]
            for kept in ([1, n_tokens], [n_tokens, 2]):
                found.append(batch.extend(mx.array(ids(2 * n_tokens, seed=9).reshape(2, n_tokens))))
                batch.keep(kept)
            found.append(batch.step(mx.array([7, 8], mx.uint32)))
            mx.eval(found)
            logits.append(found)
    for a, b in zip(*logits, strict=True):
        assert_near(a, b)


def test_kernels_in_bfloat16_stay_near_float32() -> None:
    raw = SHAPES["like the demo model"]
    plain, fused, _ = both(raw, mx.bfloat16)
    found = fused.prefill(fused.new_state(), ids(100)).logits
    with mx.stream(mx.cpu):
        wanted = plain.prefill(plain.new_state(), ids(100)).logits
    assert_near(found, wanted, 0.05)


def linear(n_out: int, n_in: int, bits: int) -> tuple[nn.Module, mx.array]:
    """A layer, and its matrix [out, in] in float32."""
    weight = mx.random.normal((n_out, n_in)).astype(mx.bfloat16)
    if bits == 16:
        layer: nn.Module = nn.Linear(1, 1, bias=False)
        layer.weight = weight
        return layer, weight.astype(mx.float32)
    layer = nn.QuantizedLinear(64, 1, bias=False, bits=bits)
    layer.weight, layer.scales, layer.biases = mx.quantize(weight, 64, bits)
    scales, biases = layer.scales.astype(mx.float32), layer.biases.astype(mx.float32)
    return layer, mx.dequantize(layer.weight, scales, biases, 64, bits)


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize(
    ("n_rows", "n_out", "n_in", "around"),
    [  # one tile of 16 rows and two, not all full; columns that do not fill a warp, and more than a block's
        (1, 33, 64, ""),
        (3, 40, 320, "norm"),
        (9, 70, 1088, "norm, gated"),
        (17, 33, 64, "residual"),
        (32, 12, 4224, "norm, gated, residual"),
    ],
)
def test_few_rows_are_multiplied_with_what_stands_around_the_product(
    n_rows: int, n_out: int, n_in: int, around: str, bits: int
) -> None:
    is_gated = "gated" in around
    layer, weight = linear(n_out * (2 if is_gated else 1), n_in, bits)
    x = mx.random.normal((n_rows, n_in)).astype(mx.bfloat16)
    norm = Norm((1 + 0.1 * mx.random.normal((n_in,))).astype(mx.bfloat16), 1e-6)
    residual = mx.random.normal((n_rows, n_out)).astype(mx.bfloat16)
    matrix = matrix_of(layer)
    assert matrix is not None
    found = multiply(
        x,
        matrix,
        norm=norm if "norm" in around else None,
        gated=is_gated,
        residual=residual if "residual" in around else None,
        dtype=mx.float32,
    )
    wanted = x.astype(mx.float32)
    if "norm" in around:
        wanted = mx.fast.rms_norm(wanted, norm.weight.astype(mx.float32), 1e-6)
    wanted = mx.array(np.array(wanted) @ np.array(weight).T)
    if is_gated:
        gate, up = mx.split(wanted, 2, axis=-1)
        wanted = gate * mx.sigmoid(gate) * up
    if "residual" in around:
        wanted = wanted + residual
    # Exact where nothing is rounded to bfloat16 on the way, as the normed row and the unpacked weight are.
    assert_near(found, wanted, 1e-6 if bits == 16 and "norm" not in around else 5e-3)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
def test_a_product_norms_its_rows_with_weights_of_any_dtype(dtype: mx.Dtype) -> None:
    layer, weight = linear(40, 320, 16)
    norm = nn.RMSNorm(320)
    norm.weight = (1 + 0.1 * mx.random.normal((320,))).astype(dtype)
    x = mx.random.normal((3, 320)).astype(mx.bfloat16)
    found = Product([layer], lambda layer, x: layer(x), norm=norm, dtype=mx.float32)(x)
    normed = mx.fast.rms_norm(x.astype(mx.float32), norm.weight.astype(mx.float32), norm.eps)
    assert_near(found, mx.array(np.array(normed) @ np.array(weight).T), 5e-3)


def test_a_row_of_few_comes_out_the_same_whoever_is_beside_it() -> None:
    layer, _ = linear(40, 320, 16)
    matrix = matrix_of(layer)
    assert matrix is not None
    x = mx.random.normal((32, 320)).astype(mx.bfloat16)
    together = multiply(x, matrix)
    for n in (1, 8, 9, 17):
        assert mx.array_equal(multiply(x[:n], matrix), together[:n])


@pytest.mark.parametrize("bits", [16, 4])
def test_a_decode_step_in_bfloat16_stays_near_array_operations_in_float32(bits: int) -> None:
    raw = SHAPES["like the demo model"]
    plain, fused, _ = both(raw, mx.bfloat16, bits)
    found: list[mx.array] = []
    wanted: list[mx.array] = []
    for forward, logits in ((fused, found), (plain, wanted)):
        with mx.stream(mx.gpu if forward is fused and detect().kind == "cuda" else mx.cpu):
            batch = forward.new_batch()
            for key, n in enumerate((70, 3)):
                state = forward.new_state()
                forward.prefill(state, ids(n, seed=key))
                batch.join(key, state)
            logits += [batch.step(mx.array([5, 6], mx.uint32)) for _ in range(2)]
            mx.eval(logits)
    for a, b in zip(found, wanted, strict=True):
        assert_near(a, b, 0.05)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("width", [64, 1032, 2560])
def test_sum_and_norm_and_swiglu_are_what_mlx_computes(width: int, dtype: mx.Dtype) -> None:
    tolerance = 1e-6 if dtype == mx.float32 else 5e-3
    x, y = (mx.random.normal((2, 3, width)).astype(dtype) for _ in range(2))
    weight = mx.random.normal((width,)).astype(dtype)
    total, normed = add_norm(x, y, weight, 1e-6)
    assert_near(total, x + y, tolerance)
    assert_near(
        normed, mx.fast.rms_norm((x + y).astype(mx.float32), weight.astype(mx.float32), 1e-6), tolerance
    )
    gate, up = mx.split(x.astype(mx.float32), 2, axis=-1)
    assert_near(swiglu(x), gate * mx.sigmoid(gate) * up, tolerance)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("head_dim", "n_heads"), [(64, 4), (128, 16), (256, 6)])
@pytest.mark.parametrize("padded", [False, True])
def test_one_query_over_many_columns_is_softmax_attention(
    head_dim: int, n_heads: int, padded: bool, dtype: mx.Dtype
) -> None:
    n_seqs, n_columns = 2, 403
    q = mx.random.normal((n_seqs, n_heads, 1, head_dim)).astype(dtype)
    keys, values = (mx.random.normal((n_seqs, 2, 512, head_dim)).astype(dtype) for _ in range(2))
    rows = mx.random.normal((n_seqs, (2 * n_heads + 4) * head_dim)).astype(dtype)
    at = AttentionShape(n_heads, 2, head_dim, head_dim // 4, 1e-6)
    one = mx.ones((1,))
    weights = AttentionWeights(one, one, one)
    padding = mx.array([0, 389], mx.int32) if padded else None
    found = decode(q, keys, values, n_columns, rows, padding, at, weights)
    mask = None if padding is None else (mx.arange(n_columns) >= padding[:, None])[:, None, None]
    with mx.stream(mx.cpu):
        q, keys, values, rows = (x.astype(mx.float32) for x in (q, keys, values, rows))
        within = (side[:, :, :n_columns] for side in (keys, values))
        out = mx.fast.scaled_dot_product_attention(q, *within, scale=head_dim**-0.5, mask=mask)
        gate = rows[:, : 2 * n_heads * head_dim].reshape(n_seqs, n_heads, 2, head_dim)[:, :, 1]
        wanted = (out[:, :, 0] * mx.sigmoid(gate)).reshape(n_seqs, -1)
    assert_near(found, wanted, 1e-5 if dtype == mx.float32 else 5e-3)


def test_a_router_sends_tokens_where_the_softmax_is_largest() -> None:
    logits = mx.random.normal((9, 41), key=mx.random.key(0)) * 2
    odds = np.array(mx.softmax(logits[:, :40], axis=-1))
    order = np.argsort(-odds, axis=-1, kind="stable")[:, :5]
    largest = np.take_along_axis(odds, order, -1)
    for is_normalised in (True, False):
        routes = few_experts.route(logits, 5, is_normalised=is_normalised)
        assert (np.array(routes.chosen) == order).all()
        wanted = largest / largest.sum(-1, keepdims=True) if is_normalised else largest
        wanted = np.concatenate([wanted, np.array(mx.sigmoid(logits[:, 40:]))], axis=-1)
        assert np.allclose(np.array(routes.shares), wanted, atol=1e-6)


def test_a_router_names_experts_that_exist_whatever_the_logits_are() -> None:
    logits = mx.concatenate([mx.zeros((1, 11)), mx.full((1, 11), mx.nan), mx.full((1, 11), -mx.inf)])
    chosen = np.array(few_experts.route(logits, 3, is_normalised=True).chosen)
    assert chosen[0].tolist() == [0, 1, 2]
    assert (chosen < 10).all()


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("width", "inside"), [(64, 32), (320, 288)])
def test_tokens_go_through_their_experts(bits: int, dtype: mx.Dtype, width: int, inside: int) -> None:
    switch = SwitchGLU(width, inside, 6)
    switch.set_dtype(dtype)
    if bits < 16:
        nn.quantize(switch, 32, bits)
    joined = Projection(switch, ["gate_proj", "up_proj"], lambda layer, x: layer(x)).layers[0]
    inputs, output = few_experts.experts_of(joined), few_experts.experts_of(switch.down_proj)
    assert inputs is not None
    assert output is not None
    x = mx.random.normal((3, width), key=mx.random.key(1)).astype(dtype)
    shared = mx.random.normal((3, width), key=mx.random.key(2)).astype(dtype)
    logits = mx.random.normal((3, 7), key=mx.random.key(3)).astype(dtype)
    routes = few_experts.route(logits, 2, is_normalised=True)
    wide = few_experts.widen(x, routes.chosen, inputs)
    found = few_experts.narrow(wide, routes, shared, output)
    summed = few_experts.narrow(wide, routes, shared, output, x)

    def matrix(layer: nn.Module, expert: int) -> np.ndarray:
        weight = layer.weight[expert]
        if bits < 16:
            weight = mx.dequantize(weight, layer.scales[expert], layer.biases[expert], 32, bits)
        return np.array(weight.astype(mx.float32))

    shares = np.array(routes.shares)
    wanted = shares[:, -1:] * np.array(shared.astype(mx.float32))
    for token in range(3):
        for expert, share in zip(np.array(routes.chosen)[token], shares[token, :-1], strict=True):
            gate, up = np.split(matrix(joined, expert) @ np.array(x.astype(mx.float32))[token], 2)
            wanted[token] += share * (matrix(switch.down_proj, expert) @ (gate / (1 + np.exp(-gate)) * up))
    tolerance = TOLERANCE if dtype == mx.float32 else 1e-2
    assert_near(found, mx.array(wanted), tolerance)
    assert_near(summed, mx.array(wanted) + x, tolerance)


@pytest.mark.parametrize("n_rows", [4, 50])
@pytest.mark.parametrize("shape", ["prompt", "batch"])
def test_on_cuda_too_rows_go_through_the_unpacked_matrix(
    n_rows: int, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.QuantizedLinear.from_linear(nn.Linear(64, 96, bias=False), 32, 4)
    x = mx.random.normal((*((1, n_rows) if shape == "prompt" else (n_rows, 1)), 64), key=mx.random.key(0))
    wanted = layer(x)
    mx.eval(wanted)
    monkeypatch.setattr(mx, "quantized_matmul", None)
    found = cuda_device.apply(layer, x)
    assert found.shape == wanted.shape
    assert mx.allclose(found, wanted, atol=1e-5).item()
