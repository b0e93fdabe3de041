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

    def count_request(self, n_prompt: int, n_reused: int) -> None:
        """A prompt of ``n_prompt`` tokens of which ``n_reused`` need not be fed."""
        self.n_requests += 1
        self.n_hits += n_reused > 0
        self.n_prompt_tokens += n_prompt
        self.n_reused_tokens += n_reused
