"""Stands in for ``mx.fast.metal_kernel`` where no Mac is: builds a kernel's source for the CPU and runs it
there, thread by thread, simdgroups of 32 in lockstep (``metal_on_cpu.h``). It shows whether a kernel computes
the right thing, not how fast, and not races."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import gated_delta

from model.devices.metal import few_tokens
from tests.fakes.cuda_emulator import GUARD, built, guarded, is_available, to_mlx, to_numpy

__all__ = ["installed", "is_available", "metal_kernel"]

HEADER = Path(__file__).parent / "metal_on_cpu.h"
TYPES = {
    mx.float32: "float",
    mx.bfloat16: "bfloat16_t",
    mx.float16: "half",
    mx.int32: "int",
    mx.uint32: "uint",
    mx.bool_: "bool",
}


class metal_kernel:  # noqa: N801  # takes the place of MLX's function
    """See ``mx.fast.metal_kernel``; arrays are row-contiguous."""

    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
    ) -> None:
        assert ensure_row_contiguous
        self.name = name
        self._input_names, self._output_names = input_names, output_names
        self._source, self._header = source, header
        self.n_launches = 0

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        template: Sequence[tuple[str, Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        self.n_launches += 1
        arrays = [x if isinstance(x, mx.array) else mx.array(x, mx.int32) for x in inputs]
        held = [to_numpy(x) for x in arrays]
        results = [guarded(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        addresses = [x.ctypes.data for x in held] + [x.ctypes.data + GUARD for x in results]
        blocks = [n // size for n, size in zip(grid, threadgroup, strict=True)]
        assert [n * size for n, size in zip(blocks, threadgroup, strict=True)] == list(grid)
        code = self._translation(arrays, output_dtypes, template)
        try:
            library = built(code)
        except subprocess.CalledProcessError as fault:
            raise RuntimeError("the kernel does not compile") from fault
        came_to_end = library.run(
            (ctypes.c_void_p * len(addresses))(*addresses), (ctypes.c_uint * 6)(*blocks, *threadgroup)
        )
        assert came_to_end, "threads wait for a barrier that others have left out"
        outputs = zip(results, output_shapes, output_dtypes, strict=True)
        return [to_mlx(x, shape, dtype) for x, shape, dtype in outputs]

    def _translation(
        self, inputs: Sequence[mx.array], outputs: Sequence[mx.Dtype], template: Sequence[tuple[str, Any]]
    ) -> str:
        """A C++ file with ``run``, which launches the kernel."""
        lines = [f'#include "{HEADER}"', "static void** arrays;"]
        for name, value in template:
            if isinstance(value, mx.Dtype):
                lines.append(f"using {name} = {TYPES[value]};")
            else:
                lines.append(f"constexpr {type(value).__name__} {name} = {str(value).lower()};")
        lines += ["using namespace metal;", self._header, "static void kernel() {"]
        for i, (name, x) in enumerate(zip(self._input_names, inputs, strict=True)):
            type_ = TYPES[x.dtype]
            if x.ndim == 0:
                lines.append(f"const {type_}& {name} = *reinterpret_cast<const {type_}*>(arrays[{i}]);")
            else:
                lines.append(f"const {type_}* {name} = reinterpret_cast<const {type_}*>(arrays[{i}]);")
        for i, (name, dtype) in enumerate(zip(self._output_names, outputs, strict=True), len(inputs)):
            lines.append(f"{TYPES[dtype]}* {name} = reinterpret_cast<{TYPES[dtype]}*>(arrays[{i}]);")
        lines += [
            self._source,
            "}",
            'extern "C" int run(void** a, const unsigned* n) {',
            "arrays = a;",
            "gridDim = {n[0], n[1], n[2]}; blockDim = {n[3], n[4], n[5]};",
            "return machine::run(kernel);",
            "}",
        ]
        return "\n".join(lines)


def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels be emulated, mlx-lm's delta rule among them: it makes them when it is imported."""
    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(gated_delta, "_gated_delta_kernel", gated_delta._make_gated_delta_kernel())
    packed = gated_delta._make_gated_delta_packed_kernel()
    monkeypatch.setattr(gated_delta, "_gated_delta_kernel_packed", packed)
    for known in (few_tokens._kernel, few_tokens.agrees):  # of earlier tests
        known.cache_clear()
