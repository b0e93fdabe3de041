"""CUDA C++ to machine code, by the NVRTC that MLX has loaded into this process.

``mx.fast.cuda_kernel`` would compile as well, but behind headers that take one to four seconds a kernel, in
every process anew; without them it is a tenth of a second.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import mlx.core as mx

from model.errors import BackendError

_MAPS = Path("/proc/self/maps")
_OK = 0


class Compiler:
    """NVRTC (docs.nvidia.com/cuda/nvrtc), of which everything used here is in every version since CUDA 11.2.

    Args:
        library: the path of ``libnvrtc.so``.
    """

    def __init__(self, library: str) -> None:
        self._nvrtc = ctypes.CDLL(library)

    def machine_code(self, source: str, architecture: str) -> bytes:
        """Compile one file without includes.

        Args:
            source: CUDA C++; kernels are ``extern "C"`` to be found by their names.
            architecture: such as ``sm_90``.

        Raises:
            BackendError: with what the compiler says.
        """
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), None, 0, None, None)
        try:
            options = (b"--std=c++17", f"--gpu-architecture={architecture}".encode())
            array = (ctypes.c_char_p * len(options))(*options)
            if self._nvrtc.nvrtcCompileProgram(program, len(options), array) != _OK:
                log = self._fetched(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
                raise BackendError(f"a kernel does not compile for {architecture}: {log}")
            return self._fetched(program, "nvrtcGetCUBIN")
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _fetched(self, program: ctypes.c_void_p, getter: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{getter}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(getter, program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._nvrtc, function)(*arguments)
        if status != _OK:
            raise BackendError(f"{function} failed with status {status}")


@cache
def loaded_compiler() -> Compiler:
    """The one that MLX brought along.

    Raises:
        BackendError: there is none in this process.
    """
    paths = (line.split(maxsplit=5)[-1].strip() for line in _MAPS.read_text().splitlines())
    library = next((path for path in paths if Path(path).name.startswith("libnvrtc.so")), None)
    if library is None:
        raise BackendError("MLX has loaded no NVRTC, which CUDA kernels are compiled with")
    return Compiler(library)


@cache
def own_architecture() -> str:
    """The GPU's, as NVRTC calls it."""
    info = mx.device_info()
    return f"sm_{info['compute_capability_major']}{info['compute_capability_minor']}"
