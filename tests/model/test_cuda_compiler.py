"""NVRTC takes every kernel, for the GPUs it is meant for; that needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from model.checkpoint.config import config_from
from model.checkpoint.fingerprint import ModelFingerprint
from model.devices.cuda.device import CudaDevice
from model.devices.cuda.kernels import attention_step, few_rows, kernel
from model.devices.cuda.kernels.compiler import Compiler
from model.devices.cuda.kernels.kernel import Outputs, Program
from model.errors import BackendError
from model.forward import Forward, Part
from tests.fakes import tiny
from tests.fakes.lm_modules import random_modules


def library() -> str | None:
    """Where ``nvidia-cuda-nvrtc`` keeps it."""
    nvidia = find_spec("nvidia")
    folders = list(nvidia.submodule_search_locations or []) if nvidia else []
    return next((str(path) for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*")), None)


pytestmark = pytest.mark.skipif(library() is None, reason="no NVRTC is installed")


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    path = library()
    assert path is not None
    return Compiler(path)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Program]:
    """What would be launched, by name; results are zeros."""
    found: dict[str, Program] = {}

    def launch(
        program: Program,
        inputs: Sequence[mx.array],  # noqa: ARG001
        blocks: Sequence[int],  # noqa: ARG001
        threads: int,  # noqa: ARG001
        outputs: Outputs,
        numbers: Sequence[int],  # noqa: ARG001
    ) -> list[mx.array]:
        found[program.name] = program
        return [mx.zeros(tuple(shape), dtype) for shape, dtype in outputs]

    monkeypatch.setattr(kernel, "launch", launch)
    return found


def forward(dtype: mx.Dtype, n_experts: int, bits: int = 16) -> Forward:
    raw = tiny.text_config(
        tiny.TinyShape(
            vocab=64,
            head_dim=256,
            n_key_heads=2,
            n_value_heads=2,
            gdn_head_dim=128,
            n_experts=n_experts,
            tied=n_experts == 0,
        )
    )
    model = random_modules(raw)
    model.set_dtype(dtype)
    if bits < 16:
        nn.quantize(model, 32, bits)
    name = str(dtype).removeprefix("mlx.core.")
    return Forward(
        model.language_model, config_from(raw), ModelFingerprint(0, 0, name), CudaDevice("a GPU", 2**34)
    )


def run(model: Forward, n_sequences: int, *, are_alike: bool = False) -> None:
    """A prompt and a capture for each, then a step of all."""
    batch = model.new_batch()
    for key in range(n_sequences):
        state = model.new_state()
        model.prefill(state, np.zeros(70 - (0 if are_alike else key), np.uint32), capture_at=[20])
        batch.join(key, state)
    batch.step(mx.zeros((n_sequences,), mx.uint32))


def read_together(model: Forward, n_sequences: int) -> None:
    """Prompts of unlike lengths in one pass, with a capture in each."""
    ids = [np.zeros(70 + 9 * i, np.uint32) for i in range(n_sequences)]
    model.prefill_together([Part(model.new_state(), own, (20,)) for own in ids])


@pytest.mark.parametrize("n_experts", [0, 8])
@pytest.mark.parametrize("bits", [16, 4])
def test_after_the_warm_up_no_batch_needs_a_kernel_that_is_not_built(
    programs: dict[str, Program], n_experts: int, bits: int
) -> None:
    model = forward(mx.bfloat16, n_experts, bits)
    model.warm_up()
    built = set(programs)
    for n_sequences in (1, 2, 16, 17, 32, 33):
        run(model, n_sequences)
        run(model, n_sequences, are_alike=True)
    for n_sequences in (2, 9):
        read_together(model, n_sequences)
    assert set(programs) == built


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_every_kernel_compiles(
    compiler: Compiler, programs: dict[str, Program], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_old = architecture == "sm_75"
    for module in (few_rows, attention_step):
        monkeypatch.setattr(module, "has_tensor_cores", lambda: not is_old)
    for n_experts in (0, 8):
        for bits in (16, 8, 4):
            forward(mx.bfloat16, n_experts, bits).warm_up()
        forward(mx.float16, n_experts).warm_up()
        forward(mx.float32, n_experts).warm_up()
    kinds = {name.rsplit("_", 1)[0] for name in programs}
    assert {
        "gdn_solve",
        "gdn_carry_each",
        "gdn_capture",
        "gdn_step",
        "attention_decode",
        "widen",
        "narrow",
    } <= kinds
    assert ("few_rows" in kinds) != is_old
    for program in programs.values():
        assert compiler.machine_code(program.source, architecture).startswith(b"\x7fELF")


def test_a_kernel_that_does_not_compile_is_reported_with_what_the_compiler_says(compiler: Compiler) -> None:
    program = Program("broken", [("float*", "y")], "y[0] = nothing;", "")
    with pytest.raises(BackendError, match='identifier "nothing" is undefined'):
        compiler.machine_code(program.source, "sm_90")
