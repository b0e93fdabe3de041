"""A device that runs MLX's own operations alone: what its kernels are compared with, and what is left when
one of them is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.device import Device
from model.layers.network import Network, network_of
from model.layers.ops import Ops


@dataclass(frozen=True)
class PlainDevice:
    """``hardware`` in all but the network that it makes; see :class:`model.device.Device`."""

    hardware: Device

    def __getattr__(self, name: str) -> object:
        return getattr(self.hardware, name)

    @property
    def name(self) -> str:
        return f"{self.hardware.name}, plain operations"

    @property
    def fuses_sampling(self) -> bool:
        return self.hardware.fuses_sampling

    @property
    def reads_ragged(self) -> bool:
        return self.hardware.reads_ragged

    @property
    def warms_parts(self) -> bool:
        return self.hardware.warms_parts

    @property
    def warm_sizes(self) -> tuple[int, ...]:
        return (1,)

    def network(self, model: nn.Module, config: ModelConfig) -> Network:
        return network_of(model, config, Ops())
