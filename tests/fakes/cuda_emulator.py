"""Stands in for the launch of CUDA kernels where no GPU is: builds a program's body for the CPU and runs it
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

import mlx.core as mx
import numpy as np

from model.devices.cuda.kernels.kernel import Outputs, Program

HEADER = Path(__file__).parent / "cuda_on_cpu.h"
GUARD = 64  # bytes on both sides of an output


def is_available() -> bool:
    return shutil.which("g++") is not None


def launch(
    program: Program,
    inputs: Sequence[mx.array],
    blocks: Sequence[int],
    threads: int,
    outputs: Outputs,
    numbers: Sequence[int],
) -> list[mx.array]:
    """See ``model.devices.cuda.kernels.kernel.launch``."""
    arrays = [to_numpy(x) for x in inputs]
    results = [guarded(shape, dtype) for shape, dtype in outputs]
    pointers = [x.ctypes.data for x in arrays] + [x.ctypes.data + GUARD for x in results]
    came_to_end = built(_translation(program, len(pointers))).run(
        (ctypes.c_void_p * len(pointers))(*pointers),
        (ctypes.c_int * len(numbers))(*numbers),
        (ctypes.c_uint * 4)(*(*blocks, 1, 1)[:3], threads),
    )
    assert came_to_end, "threads wait for a barrier that others have left out"
    return [to_mlx(x, *output) for x, output in zip(results, outputs, strict=True)]


def _translation(program: Program, n_arrays: int) -> str:
    """A C++ file with ``run``, which launches the kernel."""
    lines = [f'#include "{HEADER}"', "static void** arrays;", "static const int* numbers;"]
    lines.append(f"static void {program.name}() {{")
    for i, (type_, name) in enumerate(program.parameters):
        is_array = i < n_arrays
        value = f"reinterpret_cast<{type_}>(arrays[{i}])" if is_array else f"numbers[{i - n_arrays}]"
        lines.append(f"{type_} {name} = {value};")
    lines += [
        program.body,
        "}",
        'extern "C" int run(void** a, const int* i, const unsigned* n) {',
        "arrays = a; numbers = i;",
        "gridDim = {n[0], n[1], n[2]}; blockDim = {n[3], 1, 1};",
        f"return machine::run({program.name});",
        "}",
    ]
    return "\n".join(lines)


@cache
def built(code: str) -> ctypes.CDLL:
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


def to_numpy(x: mx.array) -> np.ndarray:
    # A copy, so that it is contiguous and stays in place.
    return np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x, order="C")


def guarded(shape: Sequence[int], dtype: mx.Dtype) -> np.ndarray:
    """Bytes of an output, not a number throughout, with guards around it."""
    return np.full(int(np.prod(shape)) * dtype.size + 2 * GUARD, 0xFF, np.uint8)


def to_mlx(held: np.ndarray, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    assert (np.concatenate([held[:GUARD], held[-GUARD:]]) == 0xFF).all(), "written beyond an output"
    inside = held[GUARD:-GUARD]
    if dtype == mx.bfloat16:
        return mx.array(inside.view(np.uint16).reshape(shape)).view(mx.bfloat16)
    own = {mx.float32: np.float32, mx.float16: np.float16, mx.uint32: np.uint32}[dtype]
    return mx.array(inside.view(own).reshape(shape))
