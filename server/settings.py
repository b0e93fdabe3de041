"""What an operator decides, as one frozen value. ``server/cli.py`` makes it, everybody may read it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cache.ring import RingLimits

ReasoningField = Literal["reasoning_content", "reasoning", "both"]

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """A size such as ``8GiB``, ``512M``, ``1.5g`` or ``1000000`` in bytes; units are powers of 1024.

    Raises:
        ValueError: ``text`` is not a positive size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    n_bytes = int(float(match[1]) * 1024 ** _UNITS[match[2]]) if match else 0
    if n_bytes <= 0:
        raise ValueError(f"{text!r} is not a size; write it like 8GiB, 512M or 1000000")
    return n_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server's configuration.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        model: ``demo``, a directory or a Hub repository.
        adapter_path: a LoRA adapter to put over the model.
        kv_bits: 8 or 4 to store keys and values in so many bits; None stores them as computed.
        served_model_names: further names under which requests may ask for the model.
        memory_budget_bytes: memory for retained conversations; None takes the machine's default.
        cache_dir: a folder that keeps conversations across restarts; None keeps them in memory alone.
        cache_dir_bytes: what that folder may hold.
        context_length: at most this many tokens a conversation; None takes the checkpoint's limit.
        max_running: sequences that decode together at most.
        max_waiting: requests that may wait for a place; one more is refused with 503.
        share_prefixes: share system-and-tools prefixes between the slots of a tenant.
        idle_prefill: read ahead between turns.
        keep_fed_ids: a message that reads the same keeps the ids that were fed for it.
        ring_count, ring_ratio: checkpoints an entry keeps at most, and their bytes as a share of its state's.
        api_keys: who may ask; empty lets everybody in.
        cors_origins: browser origins that may call.
        thinking: whether the model thinks where a request does not say; None leaves it to the template.
        reasoning_field: under which name thoughts are sent.
        max_body_bytes: longer request bodies are refused.
        stream_interval_s: how long text may wait for more of it before a stream sends it; 0 sends every token
            on its own.
        keep_alive_s: a stream is silent at most that long.
        stall_s: a request that makes no progress for so long is given up.
        drain_s: how long running requests may finish when the server is told to stop.
        log_level: of the ``crossturn`` logger.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model: str = "demo"
    adapter_path: Path | None = None
    kv_bits: int | None = None
    served_model_names: tuple[str, ...] = ()
    memory_budget_bytes: int | None = None
    cache_dir: Path | None = None
    cache_dir_bytes: int = 16 * 1024**3
    context_length: int | None = None
    max_running: int = 16
    max_waiting: int = 256
    share_prefixes: bool = True
    idle_prefill: bool = True
    keep_fed_ids: bool = False
    ring_count: int = RingLimits().max_count
    ring_ratio: float = RingLimits().max_ratio
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ("*",)
    thinking: bool | None = None
    reasoning_field: ReasoningField = "reasoning_content"
    max_body_bytes: int = 32 * 1024**2
    stream_interval_s: float = 0.04
    keep_alive_s: float = 5.0
    stall_s: float = 300.0
    drain_s: float = 5.0
    log_level: str = "info"
