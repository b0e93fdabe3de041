"""What a device must say and do for the model to run on it; the devices themselves are ``model/devices``."""

from __future__ import annotations

from typing import Literal, Protocol

import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.layers.network import Network

DeviceKind = Literal["cpu", "metal", "cuda"]


class Device(Protocol):
    """One kind of hardware, as :func:`model.backend.detect` finds it."""

    @property
    def kind(self) -> DeviceKind:
        """For reports and for tests; nothing outside ``model/devices`` is decided by it."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def n_memory_bytes(self) -> int:
        """What weights, conversations and temporaries may take together."""

    @property
    def dtype(self) -> str | None:
        """What to compute in by default; None keeps the checkpoint's own."""

    @property
    def most_part_tokens(self) -> int:
        """Tokens of a prompt in one pass: enough for the matrix products to run at full speed, few enough for
        the temporaries to stay small."""

    @property
    def layers_at_once(self) -> int | None:
        """Layers whose temporaries are in memory together during a pass; None for all."""

    @property
    def warm_sizes(self) -> tuple[int, ...]:
        """Batch sizes whose steps take kernels that no smaller batch's do."""

    def network(self, model: nn.Module, config: ModelConfig) -> Network:
        """The blocks and the decode step over loaded modules, which are taken apart for it.

        Args:
            model: mlx-lm's language model, weights in memory.
            config: of its checkpoint.
        """

    def settle_memory(self, pool_bytes: int) -> None:
        """Tell MLX how to treat memory, once the weights are loaded.

        Args:
            pool_bytes: what freed buffers may keep for new arrays.
        """
