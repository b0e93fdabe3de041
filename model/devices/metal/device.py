"""A Mac's GPU: which operations suit it, and how its memory is settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.device import DeviceKind
from model.devices.metal.attention import attend
from model.devices.metal.delta_rule import GROUP, MetalKernel
from model.layers.delta_rule import Chunked
from model.layers.network import Network, network_of
from model.layers.ops import Ops

_LEAST_POOL = 256 << 20


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
    # MLX waits when ten command buffers of some 50 MB are under way, less than a layer of a long part (not
    # run here).
    layers_at_once: ClassVar[int | None] = 2
    warm_sizes: ClassVar[tuple[int, ...]] = (1,)

    @classmethod
    def here(cls) -> MetalDevice:
        """The GPU of this machine."""
        info = mx.device_info()
        n_bytes = info.get("max_recommended_working_set_size") or info["memory_size"]
        return cls(str(info.get("device_name", "Metal")), int(n_bytes))

    def network(self, model: nn.Module, config: ModelConfig) -> Network:
        # mlx-lm's kernel reads keys in groups.
        rule = MetalKernel() if config.key_head_dim % GROUP == 0 else Chunked()
        return network_of(model, config, Ops(attend=attend, rule=rule))

    def settle_memory(self, pool_bytes: int) -> None:
        """MLX keeps ``pool_bytes`` of freed buffers at most for new arrays, and a few at any rate.

        Its default is more memory than there is, and arrays that grow with the context seldom fit a freed
        one: the pool would grow until the system runs out. What MLX holds stays resident, up to what Metal
        recommends (as with mlx-lm while it generates): otherwise macOS may take weights away between two
        requests.
        """
        mx.set_cache_limit(max(pool_bytes, _LEAST_POOL))
        mx.set_wired_limit(self.n_memory_bytes)
