"""Metal's code where no Mac is: the device as on a Mac, its kernel replaced by mlx-lm's reference for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_ops

from model.devices.metal import delta_rule
from model.devices.metal.device import MetalDevice

MAC = MetalDevice("a chip", 2**34)


@contextmanager
def metal() -> Iterator[MetalDevice]:
    """A device for ``load``; on a Mac the kernel is the real one."""
    if mx.metal.is_available():
        yield MetalDevice.here()
        return
    gather = mx.gather_mm

    def gather_in_float32(a: mx.array, b: mx.array, *rest: Any, **options: Any) -> mx.array:
        # MLX's CPU backend has this product of experts in float32 alone.
        return gather(a.astype(mx.float32), b.astype(mx.float32), *rest, **options).astype(a.dtype)

    with (
        mock.patch.object(delta_rule, "gated_delta_kernel", gated_delta_ops),
        mock.patch.object(mx, "gather_mm", gather_in_float32),
    ):
        yield MAC
