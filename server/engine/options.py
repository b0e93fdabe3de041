"""How much the engine takes on."""

from __future__ import annotations

from typing import Self

from server.settings import EngineSettings, SecondsOrNone


class LoopOptions(EngineSettings):
    """What the operator says of the loop's work, by the same names, and what only tests and measurements set.

    Attributes:
        prefill_tokens: tokens prefilled in one step while nothing is being decoded; None for what takes
            about a second.
        shared_prefill_tokens: the same while replies are being decoded, whose pause it bounds; None
            for what takes a quarter of one.
        checks_store: assert the store's invariants whenever the loop falls idle.
    """

    stream_interval_seconds: SecondsOrNone = 0.0
    prefill_tokens: int | None = None
    shared_prefill_tokens: int | None = None
    checks_store: bool = False

    @classmethod
    def of(cls, settings: EngineSettings) -> Self:
        """The operator's decisions."""
        return cls.model_validate({name: getattr(settings, name) for name in EngineSettings.model_fields})
