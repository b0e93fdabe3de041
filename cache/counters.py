"""What happened in the cache since it was made; read for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Events and tokens; all of them only grow."""

    n_requests: int = 0
    n_hits: int = 0
    n_forks: int = 0
    n_saves: int = 0
    n_drops: int = 0
    n_evicted_entries: int = 0
    n_evicted_checkpoints: int = 0
    n_prompt_tokens: int = 0
    n_reused_tokens: int = 0
