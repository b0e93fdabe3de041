"""What a device must provide for the model to run on it; the devices themselves are in ``model/devices``."""

from __future__ import annotations

from typing import Literal, Protocol

import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.layers.network import Network

DeviceKind = Literal["cpu", "metal", "cuda"]

LEAST_POOL = 256 << 20
"""The fewest bytes of freed buffers that MLX may keep on a GPU."""


class Device(Protocol):
    """One kind of hardware, as :func:`model.backend.detect` finds it."""

    @property
    def kind(self) -> DeviceKind:
        """For reports and for tests; nothing outside ``model/devices`` is decided by it."""

    @property
    def name(self) -> str:
        """The name shown to people."""

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
    def reads_ragged(self) -> bool:
        """Whether one pass over prompts of several sequences takes less time than a pass over each: weights
        are read once, and there are fewer launches."""

    @property
    def layers_at_once(self) -> int | None:
        """Layers whose temporaries are in memory together during a pass; None for all."""

    @property
    def attention_bytes(self) -> int:
        """What attention takes at most in a pass besides that, however long the context."""

    @property
    def budget_share(self) -> float:
        """Of what the weights leave of the memory, the share that conversations may take unless an operator
        says otherwise. The rest is for temporaries, and for whatever else runs there."""

    @property
    def warm_sizes(self) -> tuple[int, ...]:
        """Batch sizes whose steps take kernels that no smaller batch's do."""

    @property
    def warms_parts(self) -> bool:
        """Whether long parts of prompts take kernels that no short one's do."""

    @property
    def fuses_sampling(self) -> bool:
        """Whether launching an operation takes so long that sampling is better fused."""

    def network(self, model: nn.Module, config: ModelConfig) -> Network:
        """The blocks and the decode step over loaded modules, which are taken apart for it.

        Args:
            model: mlx-lm's language model, weights in memory.
            config: of its checkpoint.
        """

    def begin_loading(self) -> None:
        """Tell MLX to keep little of what loading leaves behind, such as the parts of joined weights."""

    def settle_memory(self, pool_bytes: int, *, wired_bytes: int = 0) -> None:
        """Tell MLX how to treat memory, once the weights are loaded.

        Args:
            pool_bytes: what freed buffers may keep for new arrays.
            wired_bytes: what is to stay resident, such as the weights; 0 leaves it to the system.

        Raises:
            BackendError: ``wired_bytes`` on a device that knows no such thing.
        """

    def is_short_of_memory(self) -> bool:
        """Whether the system is running out of memory at the moment."""
