"""Stands in for ``mx.fast.cuda_kernel`` where no GPU is: builds a kernel's source for the CPU and runs it
there, thread by thread (``cuda_on_cpu.h``). It shows whether a kernel computes the right thing, not how
fast, and not races."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

HEADER = Path(__file__).parent / "cuda_on_cpu.h"
TYPES = {mx.float32: "float", mx.bfloat16: "__nv_bfloat16", mx.int32: "int32_t", mx.uint32: "uint32_t"}
N_DIMS = 8  # room for shapes and strides
GUARD = 64  # bytes on both sides of an output


def is_available() -> bool:
    return shutil.which("g++") is not None


def cuda_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",  # noqa: ARG001 - instructions of a GPU; cuda_on_cpu.h has functions of the same names
    ensure_row_contiguous: bool = True,  # noqa: ARG001 - views always come contiguous, with strides to match
) -> Any:
    """See ``mx.fast.cuda_kernel``."""

    def launch(
        *,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, Any]],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        arrays = [_to_numpy(x) for x in inputs]
        names = [*input_names, *output_names]
        dtypes = [*(x.dtype for x in inputs), *output_dtypes]
        code = _translation(name, names, dtypes, len(inputs), template, source)
        outputs = [_guarded(s, d) for s, d in zip(output_shapes, output_dtypes, strict=True)]
        pointers = [x.ctypes.data for x in arrays] + [x.ctypes.data + GUARD for x in outputs]
        shapes, strides = np.zeros((len(arrays), N_DIMS), np.int32), np.zeros((len(arrays), N_DIMS), np.int64)
        for i, x in enumerate(arrays):
            shapes[i, : x.ndim] = x.shape
            strides[i, : x.ndim] = [step // x.itemsize for step in x.strides]
        n_blocks = [-(-n // size) for n, size in zip(grid, threadgroup, strict=True)]
        came_to_end = _built(code).run(
            (ctypes.c_void_p * len(pointers))(*pointers),
            shapes.ctypes.data_as(ctypes.c_void_p),
            strides.ctypes.data_as(ctypes.c_void_p),
            (ctypes.c_uint * 6)(*n_blocks, *threadgroup),
        )
        assert came_to_end, "threads wait for a barrier that others have left out"
        return [_to_mlx(x, s, d) for x, s, d in zip(outputs, output_shapes, output_dtypes, strict=True)]

    return launch


def _translation(
    name: str,
    names: Sequence[str],
    dtypes: Sequence[mx.Dtype],
    n_inputs: int,
    template: Sequence[tuple[str, Any]],
    source: str,
) -> str:
    """A C++ file with ``run``, which launches the kernel."""
    lines = [f'#include "{HEADER}"', "static void** arrays;"]
    lines += ["static const Shape* shapes;", "static const Strides* strides;", f"static void {name}() {{"]
    for i, (array, dtype) in enumerate(zip(names, dtypes, strict=True)):
        pointer = f"const {TYPES[dtype]}*" if i < n_inputs else f"{TYPES[dtype]}*"
        lines.append(f"{pointer} {array} = reinterpret_cast<{pointer}>(arrays[{i}]);")
        if i < n_inputs and f"{array}_shape" in source:
            lines.append(f"const Shape& {array}_shape = shapes[{i}];")
        if i < n_inputs and f"{array}_strides" in source:
            lines.append(f"const Strides& {array}_strides = strides[{i}];")
    for key, value in template:
        is_type = isinstance(value, mx.Dtype)
        lines.append(f"using {key} = {TYPES[value]};" if is_type else f"constexpr int {key} = {int(value)};")
    lines += [
        source,
        "}",
        'extern "C" int run(void** a, const Shape* s, const Strides* t, const unsigned* n) {',
    ]
    lines += ["arrays = a; shapes = s; strides = t;"]
    lines += [
        "gridDim = {n[0], n[1], n[2]}; blockDim = {n[3], n[4], n[5]};",
        f"return machine::run({name});",
        "}",
    ]
    return "\n".join(lines)


@cache
def _built(code: str) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="cuda-on-cpu-"))
    name = hashlib.sha256(code.encode()).hexdigest()[:16]
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(code)
    # Fortified, longjmp would refuse to change stacks.
    flags = ["-std=c++20", "-O1", "-w", "-U_FORTIFY_SOURCE", "-fPIC", "-shared", "-ffp-contract=off"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    shutil.rmtree(folder)
    return loaded


def _to_numpy(x: mx.array) -> np.ndarray:
    # A copy, so that it is contiguous and stays in place.
    return np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x, order="C")


def _guarded(shape: Sequence[int], dtype: mx.Dtype) -> np.ndarray:
    """Bytes of an output, not a number throughout, with guards around it."""
    return np.full(int(np.prod(shape)) * dtype.size + 2 * GUARD, 0xFF, np.uint8)


def _to_mlx(held: np.ndarray, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    assert (np.concatenate([held[:GUARD], held[-GUARD:]]) == 0xFF).all(), "written beyond an output"
    inside = held[GUARD:-GUARD]
    if dtype == mx.bfloat16:
        return mx.array(inside.view(np.uint16).reshape(shape)).view(mx.bfloat16)
    return mx.array(inside.view(np.uint32 if dtype == mx.uint32 else np.float32).reshape(shape))
