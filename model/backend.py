"""Makes MLX importable and finds out which device it runs on: the one place that asks.

Must not import MLX before it is told to.
"""

from __future__ import annotations

import sys
from importlib import util
from typing import TYPE_CHECKING, cast

from model.devices.cpu.blas import use_openblas
from model.devices.cpu.host import keep_freed_memory
from model.errors import BackendError

if TYPE_CHECKING:
    from model.device import Device


def prepare() -> None:
    """Make MLX importable and fast; call before the first ``import mlx.core`` of the process.

    Raises:
        BackendError: MLX is missing or has no backend on this machine; one line, naming the extra.
    """
    if util.find_spec("mlx") is None:
        raise BackendError(f"MLX is not installed: {_remedy()}")
    if sys.platform == "linux":
        use_openblas()
        keep_freed_memory()
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise BackendError(f"MLX has no backend here ({reason}): {_remedy()}") from error


def detect() -> Device:
    """The device that MLX uses by default. Call after :func:`prepare`."""
    import mlx.core as mx

    if mx.default_device() != mx.gpu:
        from model.devices.cpu.device import CpuDevice

        return CpuDevice.here()
    if mx.metal.is_available():
        from model.devices.metal.device import MetalDevice

        return MetalDevice.here()
    from model.devices.cuda.device import CudaDevice

    return CudaDevice.here()


def without_kernels(device: Device) -> Device:
    """``device`` with MLX's own operations alone: what its kernels are compared with."""
    from model.devices.plain import PlainDevice

    return cast("Device", PlainDevice(device))


def _remedy() -> str:
    if sys.platform == "linux":
        return "pip install 'crossturn[cpu]', or 'crossturn[cuda]' for an NVIDIA GPU"
    return "pip install --force-reinstall crossturn, with an arm64 Python on macOS 14 or newer"
