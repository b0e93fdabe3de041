"""``crossturn check`` over the CUDA kernels: on a GPU, or else thread by thread on the CPU; faults that are
planted in their sources are called by the names of the parts that they spoil."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import pytest

import server.check.kernels as checking
from model.backend import detect
from model.device import Device
from model.devices.cuda.device import CudaDevice
from model.devices.cuda.kernels import (
    attention_step,
    few_experts,
    few_rows,
    gdn_prompt,
    gdn_step,
    kernel,
    pointwise,
)
from model.devices.cuda.kernels.kernel import Kernel
from server.check.kernels import check_kernels
from tests.fakes import cuda_emulator, tiny

IS_GPU = detect().kind == "cuda"
pytestmark = pytest.mark.skipif(
    not IS_GPU and not cuda_emulator.is_available(), reason="neither a GPU nor a C++ compiler"
)

# Heads that the kernels take.
DENSE = replace(
    tiny.DENSE, n_heads=2, n_kv_heads=1, head_dim=64, n_key_heads=1, n_value_heads=2, gdn_head_dim=64
)
EXPERTS = replace(DENSE, n_experts=8, tied=False)


AGREEING = {
    "float32": (DENSE, "float32"),
    "bfloat16": (DENSE, "bfloat16"),
    "experts in float32": (EXPERTS, "float32"),
}
if IS_GPU:  # MLX's CPU backend, on which the rest is emulated, multiplies experts in float32 alone
    AGREEING["experts in bfloat16"] = (EXPERTS, "bfloat16")


class Fault(NamedTuple):
    """A change of a kernel's source, and the rows of the table in which it must show."""

    kernel: Kernel
    right: str
    wrong: str
    names: set[str]
    dtype: str = "float32"
    shape: tiny.TinyShape = DENSE


FAULTS = {
    "norm": Fault(
        pointwise._add_norm,
        "values[i][j] * scale",
        "values[i][j] * 1.2f * scale",
        {"norms, embedding and head, prompt"},
    ),
    "feed-forward": Fault(
        pointwise._swiglu, "expf(-g)", "expf(-0.5f * g)", {"feed-forward, prompt", "feed-forward, step"}
    ),
    "delta rule, a step": Fault(
        gdn_step._step,
        "kept * s[r][j] + error",
        "0.7f * kept * s[r][j] + error",
        {"GDN layer, step", "GDN layer, batch"},
    ),
    "delta rule, several tokens": Fault(
        gdn_step._few, "error = strength", "error = 0.7f * strength", {"GDN layer, guessed tokens"}
    ),
    "delta rule, a chunk to the next": Fault(
        gdn_prompt._carry, "kept = expf(", "kept = 0.5f * expf(", {"GDN layer, prompt"}
    ),
    "delta rule, outputs of a prompt": Fault(
        gdn_prompt._attend, "tj + 16 * c;\n    scores", "tj + 15 * c;\n    scores", {"GDN layer, prompt"}
    ),
    "delta rule, a capture": Fault(
        gdn_prompt._capture, "now = total[n_rows - 1]", "now = total[0]", {"GDN layer, prompt"}
    ),
    "attention, the parts of a row": Fault(
        attention_step._join,
        "share += kept",
        "share += 1.2f * kept",
        {"attention, step", "attention, batch"},
    ),
    "few rows": Fault(
        few_rows._multiply,
        "float value = 0.0f, up",
        "float value = 0.3f, up",
        {"norms, embedding and head, step"},
        "bfloat16",
    ),
    "experts": Fault(
        few_experts._narrow[True],
        "total += share[c] * sum",
        "total += 1.3f * share[c] * sum",
        {"feed-forward, step", "feed-forward, batch"},
        shape=EXPERTS,
    ),
}


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The GPU; where there is none, the kernels run on the CPU at once, so nothing is compiled."""
    if IS_GPU:
        yield detect()
        return
    monkeypatch.setattr(kernel, "launch", cuda_emulator.launch)
    monkeypatch.setattr(checking, "_N_PROMPT", 70)  # more than a chunk
    monkeypatch.setattr(checking, "_CAPTURES", (30, 64))
    monkeypatch.setattr(checking, "_LENGTHS", (66, 33, 9))
    mx.disable_compile()
    yield CudaDevice("a GPU", 2**34)
    mx.enable_compile()


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dtype"), AGREEING.values(), ids=AGREEING)
def test_the_cuda_kernels_agree_with_plain_operations(
    shape: tiny.TinyShape, dtype: str, device: Device, tmp_path: Path
) -> None:
    section = check_kernels(tiny.write_text(tmp_path, shape), device, dtype)
    assert section.differing == []
    assert len(section.rows) == 20


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_a_cuda_kernel_is_called_by_its_name(
    fault: Fault, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fault.kernel._source
    assert source.count(fault.right) == 1
    monkeypatch.setattr(fault.kernel, "_source", source.replace(fault.right, fault.wrong))
    monkeypatch.setattr(fault.kernel, "_programs", {})
    found = check_kernels(tiny.write_text(tmp_path, fault.shape), device, fault.dtype).differing
    assert set(found) >= fault.names
    assert {name.rpartition(", ")[0] for name in found} == {name.rpartition(", ")[0] for name in fault.names}
