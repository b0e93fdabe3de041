"""CUDA kernels as functions of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx
import numpy as np

from model.devices.cuda.kernels.compiler import loaded_compiler, own_architecture

Constants = dict[str, int | float | mx.Dtype]
Outputs = Sequence[tuple[Sequence[int], mx.Dtype]]

TYPES = {
    mx.float32: "float",
    mx.bfloat16: "bfloat16",
    mx.float16: "float16",
    mx.int32: "int",
    mx.uint32: "unsigned",
}

# The two narrow types, which CUDA has in headers alone.
_PRELUDE = """
struct bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  __device__ explicit bfloat16(float x) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    const unsigned word = __float_as_uint(x);
    bits = x == x ? (word + 0x7fffu + (word >> 16 & 1u)) >> 16 : 0x7fffu;
#endif
  }
  __device__ explicit operator float() const { return __uint_as_float((unsigned)bits << 16); }
};
struct float16 {
  unsigned short bits;
  float16() = default;
  __device__ explicit float16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ explicit operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
"""


class Program:
    """One kernel for arrays of certain dtypes and with certain constants.

    Attributes:
        name: of its own.
        parameters: type and name of each.
        body: the constants and the source.
    """

    def __init__(self, name: str, parameters: Sequence[tuple[str, str]], body: str, header: str) -> None:
        self.parameters = tuple(parameters)
        self.body = body
        self._header = header
        # MLX keeps loaded kernels under their names.
        self.name = f"{name}_{hashlib.sha256(repr((parameters, body, header)).encode()).hexdigest()[:12]}"

    @property
    def source(self) -> str:
        """A file of CUDA C++."""
        parameters = ", ".join(f"{type_} {name}" for type_, name in self.parameters)
        head = f'extern "C" __global__ void {self.name}({parameters})'
        return f"{_PRELUDE}{self._header}{head} {{\n{self.body}\n}}\n"

    @cached_property
    def machine_code(self) -> bytes:
        """For the GPU of this process."""
        return loaded_compiler().machine_code(self.source, own_architecture())


class Kernel:
    """A kernel's source.

    Args:
        name: for profiles.
        inputs, outputs: names of the arrays in ``source``, in order. Inputs are contiguous.
        source: the body.
        numbers: names of integers in ``source`` that change from launch to launch.
        header: device functions in front of it.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        source: str,
        *,
        numbers: Sequence[str] = (),
        header: str = "",
    ) -> None:
        self._name = name
        self._inputs = inputs
        self._outputs = outputs
        self._source = source
        self._numbers = numbers
        self._header = header
        self._programs: dict[tuple[object, ...], Program] = {}

    def __call__(
        self,
        inputs: Sequence[mx.array],
        constants: Constants,
        blocks: Sequence[int],
        threads: int,
        outputs: Outputs,
        *numbers: int,
    ) -> list[mx.array]:
        """Launch it.

        Args:
            inputs: the arrays.
            constants: numbers and types of the source; each combination is compiled on its own.
            blocks: [1..3] blocks in each direction.
            threads: of a block.
            outputs: shape and dtype of each result.
            numbers: those of the names. An array of one number would be slow in their place: MLX keeps such
                in the host's memory, and every block would read it from there.
        """
        assert len(numbers) == len(self._numbers)
        dtypes = [x.dtype for x in inputs], [dtype for _, dtype in outputs]
        key = (*constants.items(), *dtypes[0], *dtypes[1])
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._program(constants, *dtypes)
        return launch(program, inputs, blocks, threads, outputs, numbers)

    def _program(
        self, constants: Constants, inputs: Sequence[mx.Dtype], outputs: Sequence[mx.Dtype]
    ) -> Program:
        parameters = [
            *((f"const {TYPES[dtype]}*", name) for dtype, name in zip(inputs, self._inputs, strict=True)),
            *((f"{TYPES[dtype]}*", name) for dtype, name in zip(outputs, self._outputs, strict=True)),
            *(("int", name) for name in self._numbers),
        ]
        lines = [_definition(name, value) for name, value in constants.items()]
        return Program(self._name, parameters, "\n".join([*lines, self._source]), self._header)


def launch(
    program: Program,
    inputs: Sequence[mx.array],
    blocks: Sequence[int],
    threads: int,
    outputs: Outputs,
    numbers: Sequence[int],
) -> list[mx.array]:
    """See :class:`Kernel`."""
    x, y, z = (*blocks, 1, 1)[:3]
    results: list[mx.array] = mx.fast.precompiled_cuda_kernel(
        name=program.name,
        compiled_source=program.machine_code,
        inputs=list(inputs),
        output_shapes=[tuple(shape) for shape, _ in outputs],
        output_dtypes=[dtype for _, dtype in outputs],
        scalars=list(numbers),
        grid=(x * threads, y, z),
        threadgroup=(threads, 1, 1),
        ensure_row_contiguous=True,
    )
    return results


def _definition(name: str, value: int | float | mx.Dtype) -> str:
    if isinstance(value, mx.Dtype):
        return f"using {name} = {TYPES[value]};"
    if isinstance(value, float):
        return f"constexpr float {name} = {float(np.float32(value)).hex()}f;"
    return f"constexpr int {name} = {value};"
