"""A Mac's GPU: which operations suit it, and how its memory is settled."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.device import LEAST_POOL, DeviceKind
from model.devices.metal.attention import ATTENTION_BYTES, Heads, attend, attend_packed, chosen
from model.devices.metal.delta_rule import GROUP, MetalKernel
from model.devices.metal.few_tokens import agrees
from model.layers.delta_rule import Chunked
from model.layers.network import Network, network_of
from model.layers.ops import Ops, convolution

_NORMAL = 1
_PRESSURE = b"kern.memorystatus_vm_pressure_level"


@dataclass(frozen=True, slots=True)
class MetalDevice:
    """See :class:`model.device.Device`.

    Attributes:
        name: of the chip.
        n_memory_bytes: the working set that Metal recommends.
    """

    name: str
    n_memory_bytes: int

    kind: ClassVar[DeviceKind] = "metal"
    dtype: ClassVar[str | None] = None
    most_part_tokens: ClassVar[int] = 2048
    reads_ragged: ClassVar[bool] = True  # (not run here)
    # MLX waits when ten command buffers of some 50 MB are under way, less than a layer of a long part (not
    # run here).
    layers_at_once: ClassVar[int | None] = 2
    attention_bytes: ClassVar[int] = ATTENTION_BYTES
    budget_share: ClassVar[float] = 0.5  # a desktop lives in the same memory
    warm_sizes: ClassVar[tuple[int, ...]] = (1, 2)  # alone, padded
    warms_parts: ClassVar[bool] = True
    fuses_sampling: ClassVar[bool] = True

    @classmethod
    def here(cls) -> MetalDevice:
        """The GPU of this machine."""
        info = mx.device_info()
        n_bytes = info.get("max_recommended_working_set_size") or info["memory_size"]
        return cls(str(info.get("device_name", "Metal")), int(n_bytes))

    def network(self, model: nn.Module, config: ModelConfig) -> Network:
        # mlx-lm's kernel reads keys in groups.
        fits = config.key_head_dim % GROUP == 0
        dtype = model.model.norm.weight.dtype
        if fits:  # tried now, not beside a request
            agrees(dtype, config.key_head_dim, config.value_head_dim)
        rule = MetalKernel() if fits else Chunked()
        heads = Heads(config.n_heads, config.n_kv_heads, config.head_dim)
        ops = Ops(
            attend=chosen(attend, heads, dtype), attend_packed=attend_packed, rule=rule, convolve=convolution
        )
        return network_of(model, config, ops, compiles=True)

    def begin_loading(self) -> None:
        mx.set_memory_limit(self.n_memory_bytes)
        mx.set_cache_limit(LEAST_POOL)

    def settle_memory(self, pool_bytes: int, *, wired_bytes: int = 0) -> None:
        """MLX keeps ``pool_bytes`` of freed buffers at most for new arrays, and a few at any rate.

        Its default is more memory than there is, and arrays that grow with the context seldom fit a freed
        one: the pool would grow until the system runs out.

        Nothing is wired unless asked for. With all of the working set wired, as mlx-lm has it while it
        generates, Macs were reported to panic when two streams allocate and free (ml-explore/mlx#3186), and
        those of 16 GB to freeze. What may be wired is therefore no more than the weights, which never change.
        """
        mx.set_cache_limit(max(pool_bytes, LEAST_POOL))
        if wired_bytes:
            mx.clear_cache()
            mx.set_wired_limit(min(wired_bytes, self.n_memory_bytes))

    def is_short_of_memory(self) -> bool:
        return pressure_level() > _NORMAL


def pressure_level() -> int:
    """What macOS thinks of its memory: 1 is normal, 2 a warning, 4 critical. 1 where nobody says."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "sysctlbyname"):
        return _NORMAL
    level, size = ctypes.c_int(_NORMAL), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    libc.sysctlbyname(_PRESSURE, ctypes.byref(level), ctypes.byref(size), None, ctypes.c_size_t(0))
    return level.value
