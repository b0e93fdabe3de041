"""Finds out what MLX runs on here: the CPU, Metal or CUDA. Must not import MLX before it is told to."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from importlib import util
from typing import Literal

from model.blas import use_openblas
from model.errors import BackendError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

_LEAST_POOL = 256 << 20

BackendKind = Literal["cpu", "metal", "cuda"]


@dataclass(frozen=True, slots=True)
class Backend:
    """The device MLX computes on.

    Attributes:
        kind: decides the code paths (chunkwise GDN off Metal, float32 on the CPU).
        name: for people.
        n_memory_bytes: Metal's recommended working set, the GPU's memory, or the machine's RAM.
        dtype: the dtype to compute in; None keeps the checkpoint's own.
    """

    kind: BackendKind
    name: str
    n_memory_bytes: int
    dtype: str | None


def prepare() -> None:
    """Make MLX importable and fast; call before the first ``import mlx.core`` of the process.

    Raises:
        BackendError: MLX is missing or has no backend on this machine; one line, naming the extra.
    """
    if util.find_spec("mlx") is None:
        raise BackendError(f"MLX is not installed: pip install '{_extra()}'")
    use_openblas()
    _keep_freed_memory()
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise BackendError(f"MLX has no backend here ({reason}): pip install '{_extra()}'") from error


def detect() -> Backend:
    """The device MLX uses by default. Call after :func:`prepare`."""
    import mlx.core as mx

    if mx.default_device() == mx.gpu:
        info = mx.device_info()
        kind: BackendKind = "metal" if mx.metal.is_available() else "cuda"
        n_bytes = (
            info.get("max_recommended_working_set_size") or info.get("memory_size") or info["total_memory"]
        )
        return Backend(kind, str(info.get("device_name", kind)), int(n_bytes), None)
    # MLX's CPU products are fast in float32 only: 5 GFLOP/s in bfloat16 on two cores, 200 in float32.
    name = f"CPU ({platform.machine()}, {n_usable_cores()} cores)"
    return Backend("cpu", name, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "float32")


def settle_memory(backend: Backend, pool_bytes: int) -> None:
    """Tell MLX how to treat a GPU's memory; the CPU's is left alone.

    It may keep ``pool_bytes`` of freed buffers at most for new arrays, and a few at any rate. Its default is
    more memory than there is, and arrays that grow with the context seldom fit a freed one: the pool would
    grow until the system runs out. On a Mac what it holds stays resident, up to what Metal recommends (as
    with mlx-lm while it generates): otherwise macOS may take weights away between two requests.
    """
    import mlx.core as mx

    if backend.kind != "cpu":
        mx.set_cache_limit(max(pool_bytes, _LEAST_POOL))
    if backend.kind == "metal":
        mx.set_wired_limit(backend.n_memory_bytes)


def n_usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _keep_freed_memory() -> None:
    """Let glibc keep up to 256 MiB of freed memory for the next arrays.

    MLX's CPU backend takes every array from malloc, which by default gives the larger ones back to the
    system at once: a prefill then spends a fifth of its time in page faults.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def _extra() -> str:
    return "crossturn[cpu]" if sys.platform == "linux" else "crossturn"
