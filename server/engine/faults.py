"""What becomes of a fault: what the client is told, and whether memory can help."""

from __future__ import annotations

import mlx.core as mx

from cache.store import Store
from model.errors import GrammarError, InputError
from server.events import Failed

_SIGNS = ("out of memory", "malloc", "bad_alloc", "unable to allocate", "attempting to allocate")
"""What the allocators of MLX's devices say; they have no exception of their own."""


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether an allocation failed."""
    said = str(fault).lower()
    return isinstance(fault, MemoryError) or any(sign in said for sign in _SIGNS)


def make_room(store: Store) -> None:
    """Let half of what is remembered go, and give MLX's pool of free buffers back."""
    store.make_room(store.n_bytes // 2)
    mx.clear_cache()


def failure_of(fault: BaseException) -> Failed:
    """What the client is told. Of faults of our own it learns no more than that there was one."""
    if isinstance(fault, InputError):
        return Failed(fault.message, "invalid", param=fault.param)
    if isinstance(fault, GrammarError):
        return Failed(f"the reply cannot be kept to its schema any further: {fault}", "internal")
    if is_out_of_memory(fault):
        return Failed("memory ran out", "overloaded", retry_after_s=RETRY_AFTER_S)
    return Failed("the reply could not be generated; the server's log says why", "internal")


RETRY_AFTER_S = 5.0
"""What a refused client is told to wait: about the time of a short reply."""
