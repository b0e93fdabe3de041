"""An NVIDIA GPU: which layers and operations suit it, and how its memory is settled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.device import LEAST_POOL, DeviceKind
from model.devices.cuda.attention import CudaAttention
from model.devices.cuda.gdn import CudaGdn
from model.devices.cuda.kernels import pointwise
from model.devices.cuda.kernels.attention_prompt import ATTENTION_BYTES
from model.devices.cuda.kernels.few_rows import can_multiply, matrix_of, multiply
from model.devices.cuda.mixture import CudaFeedForward
from model.devices.cuda.step import FEW_SIZES, CompiledStep
from model.errors import BackendError
from model.layers.attention import Attention
from model.layers.gdn import Gdn
from model.layers.network import Network, head_of, network_of
from model.layers.ops import AddNorm, Ops, Projection, apply_unpacked


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """See :class:`model.device.Device`.

    Attributes:
        name: of the GPU.
        n_memory_bytes: all of its memory.
    """

    name: str
    n_memory_bytes: int

    kind: ClassVar[DeviceKind] = "cuda"
    dtype: ClassVar[str | None] = None
    most_part_tokens: ClassVar[int] = 4096
    reads_ragged: ClassVar[bool] = True
    # MLX launches a pass whole before its first kernels are done: the 0.8B shape took 3.4 MB a token on an
    # H200, 4B 5.3 MB, where all layers count 2.5 and 6.9.
    layers_at_once: ClassVar[int | None] = None
    attention_bytes: ClassVar[int] = ATTENTION_BYTES
    budget_share: ClassVar[float] = 0.75
    # Alone, padded, of more than 16 rows.
    warm_sizes: ClassVar[tuple[int, ...]] = (1, 2, 17)
    warms_parts: ClassVar[bool] = True
    fuses_sampling: ClassVar[bool] = True

    @classmethod
    def here(cls) -> CudaDevice:
        """The GPU of this machine."""
        info = mx.device_info()
        n_bytes = info.get("memory_size") or info["total_memory"]
        return cls(str(info.get("device_name", "CUDA")), int(n_bytes))

    def network(self, model: nn.Module, config: ModelConfig) -> Network:
        attending = [layer.self_attn for layer in model.model.layers if not layer.is_linear]
        ops = cuda_ops()
        network = network_of(
            model,
            config,
            ops,
            gdn=CudaGdn if CudaGdn.takes(config) else Gdn,
            attention=CudaAttention if all(CudaAttention.takes(b, config) for b in attending) else Attention,
            feed_forward=CudaFeedForward,
        )
        if not CompiledStep.takes(network.blocks):
            return network
        step = CompiledStep(model.model, network.blocks, head_of(model, config), ops)
        return replace(network, step=step, extend=step.extend, few_sizes=FEW_SIZES)

    def begin_loading(self) -> None:
        mx.set_cache_limit(LEAST_POOL)

    def settle_memory(self, pool_bytes: int, *, wired_bytes: int = 0) -> None:
        """MLX keeps ``pool_bytes`` of freed buffers at most for new arrays, and a few at any rate.

        Its default is more memory than there is, and arrays that grow with the context seldom fit a freed
        one: the pool would grow until the GPU runs out.
        """
        if wired_bytes:
            raise BackendError("memory can be wired on a Mac alone")
        mx.set_cache_limit(max(pool_bytes, LEAST_POOL))

    def is_short_of_memory(self) -> bool:
        return False  # its memory is nobody else's


def cuda_ops() -> Ops:
    """What layers compute with outside the kernels that take them whole."""
    return Ops(apply=apply, swiglu=swiglu, add_norm=add_norm)


def apply(layer: nn.Module, x: mx.array) -> mx.array:
    """A few rows through our kernel, the others through plain products."""
    if can_multiply(x) and (matrix := matrix_of(layer)) is not None:
        return multiply(x.reshape(-1, x.shape[-1]), matrix).reshape(*x.shape[:-1], -1)
    return apply_unpacked(layer, x)


def swiglu(inputs: Projection, x: mx.array) -> mx.array:
    """See :data:`model.layers.ops.Swiglu`."""
    return pointwise.swiglu(inputs.joined(x))


def add_norm(norm: nn.Module) -> AddNorm:
    """See :data:`model.layers.ops.AddNorm`."""
    return lambda x, y: pointwise.add_norm(x, y, norm.weight, norm.eps)
