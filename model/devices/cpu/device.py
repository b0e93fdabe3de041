"""The CPU: which layers and operations suit it, and what it takes of the machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.checkpoint.weights import parameters
from model.device import DeviceKind
from model.devices.cpu.attention import CpuAttention
from model.devices.cpu.blas import use_one_thread
from model.devices.cpu.gdn import CpuGdn
from model.devices.cpu.host import available_memory, n_usable_cores, usable_memory
from model.devices.cpu.network import CpuFeedForward, CpuStep
from model.devices.cpu.operations import cpu_ops
from model.devices.cpu.rows import Crew
from model.errors import BackendError
from model.layers.network import Network, head_of, network_of

_FEW_SIZES = (2, 64)
_LITTLE = 16  # memory is short when less than this fraction of it is free
_SMALL_BYTES = 256 << 20  # weights that a step reads from caches rather than from memory, roughly


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """See :class:`model.device.Device`.

    Attributes:
        name: of the machine's kind.
        n_memory_bytes: what the system lets the process take.
        n_cores: that work at once.
    """

    name: str
    n_memory_bytes: int
    n_cores: int

    kind: ClassVar[DeviceKind] = "cpu"
    # MLX's CPU products are fast in float32 only: 5 GFLOP/s in bfloat16 on two cores, 200 in float32.
    dtype: ClassVar[str | None] = "float32"
    most_part_tokens: ClassVar[int] = 512  # temporaries stay near the caches
    # Products run at full speed from some hundred rows on, and mixed tokens leave the caches.
    reads_ragged: ClassVar[bool] = False
    layers_at_once: ClassVar[int | None] = 1
    attention_bytes: ClassVar[int] = 64 << 20  # a few blocks for each core
    budget_share: ClassVar[float] = 0.5  # other programs live in the same memory
    warm_sizes: ClassVar[tuple[int, ...]] = (1,)
    warms_parts: ClassVar[bool] = False
    fuses_sampling: ClassVar[bool] = False

    @classmethod
    def here(cls) -> CpuDevice:
        """The CPU of this machine."""
        n_cores = n_usable_cores()
        return cls(f"CPU ({platform.machine()}, {n_cores} cores)", usable_memory(), n_cores)

    def network(self, model: nn.Module, config: ModelConfig) -> Network:
        crew = Crew(self.n_cores)
        network = network_of(
            model,
            config,
            cpu_ops(),
            gdn=partial(CpuGdn, crew=crew),
            attention=partial(CpuAttention, crew=crew),
            feed_forward=partial(CpuFeedForward, crew=crew),
            compiles=True,  # an eighth of a step
        )
        use_one_thread(for_mlx=sum(w.nbytes for w in parameters(model).values()) < _SMALL_BYTES)
        head = head_of(model, config)
        if not CpuStep.takes(model.model, network.blocks, head):
            return network
        step = CpuStep(model.model, network.blocks, head, crew)
        return replace(network, head=step.head, step=step, extend=step.extend, few_sizes=_FEW_SIZES)

    def begin_loading(self) -> None:
        """Nothing: MLX takes the CPU's arrays from malloc and gives them back."""

    def settle_memory(self, pool_bytes: int, *, wired_bytes: int = 0) -> None:  # noqa: ARG002
        """Nothing, likewise."""
        if wired_bytes:
            raise BackendError("memory can be wired on a Mac alone")

    def is_short_of_memory(self) -> bool:
        return available_memory() < self.n_memory_bytes // _LITTLE
