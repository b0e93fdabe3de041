"""Sequences of any length without reading a prompt, and the time a step over them takes.

The rows and states are filled in; what stands in them changes nothing about the cost of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import ArraysCache, BatchKVCache

from model.checkpoint.config import ModelConfig
from model.forward import Forward
from model.state import KvRows, Recurrent, State, capacity_for

Step = Callable[[mx.array], mx.array]  # ids [B] to logits [B, V]
N_STEPS = 32


def filled_state(forward: Forward, length: int) -> State:
    """A state that stands for ``length`` tokens nobody read."""
    empty = forward.new_state()
    layout = forward.kv_layout
    shape = (1, layout.n_heads, capacity_for(length), layout.head_dim)
    kv = []
    for _ in empty.kv:
        keys, values = (mx.random.normal(shape).astype(layout.dtype) for _ in range(2))
        kv.append(KvRows(layout, layout.encode(keys, values), length))
    layers = [Recurrent(mx.zeros_like(r.window), mx.zeros_like(r.matrix) + 0.01) for r in empty.recurrent]
    state = State(kv, layers, length)
    mx.eval(*state.arrays)
    return state


def stepper(forward: Forward, states: Sequence[State]) -> Step:
    """A batch that owns ``states``."""
    batch = forward.new_batch()
    for key, state in enumerate(states):
        batch.join(key, state)
    return batch.step


def filled_cache(model: nn.Module, config: ModelConfig, size: int, length: int) -> list[Any]:
    """mlx-lm's caches for ``size`` sequences that stand at ``length``."""
    shape = (size, config.n_kv_heads, length, config.head_dim)
    dtype = model.language_model.model.norm.weight.dtype
    caches: list[Any] = []
    for kind in config.layer_types:
        if kind == "full_attention":
            cache = BatchKVCache([0] * size)
            cache.update_and_fetch(*(mx.random.normal(shape).astype(dtype) for _ in range(2)))
        else:
            cache = ArraysCache(size=2)
            cache[0] = mx.zeros((size, config.conv_kernel - 1, config.conv_dim), dtype)
            cache[1] = mx.zeros((size, config.n_value_heads, config.value_head_dim, config.key_head_dim))
        caches.append(cache)
    return caches


class StepTimes(NamedTuple):
    """Seconds of a step on the thread that makes it.

    Attributes:
        built: until its graph stands.
        launched: until everything is handed to the device.
        waited: for the tokens of the step before.
    """

    built: float
    launched: float
    waited: float

    @property
    def total(self) -> float:
        return sum(self)


def step_times(step: Step, size: int) -> StepTimes:
    """What a greedy step takes on average, the next one launched before the last is read."""
    tokens = mx.zeros((size,), mx.uint32)
    for _ in range(8):
        tokens = mx.argmax(step(tokens), axis=-1)
        mx.eval(tokens)
    marks = [time.perf_counter()]
    for _ in range(N_STEPS):
        following = mx.argmax(step(tokens), axis=-1)
        marks.append(time.perf_counter())
        mx.async_eval(following)
        marks.append(time.perf_counter())
        tokens.tolist()
        marks.append(time.perf_counter())
        tokens = following
    tokens.tolist()
    built, launched, waited = np.diff(marks).reshape(N_STEPS, 3).sum(axis=0)
    waited += time.perf_counter() - marks[-1]
    return StepTimes(*(float(part) / N_STEPS for part in (built, launched, waited)))


def decode_seconds(step: Step, size: int, n_runs: int = 1) -> float:
    """The median total of :func:`step_times` over some runs."""
    return float(np.median([step_times(step, size).total for _ in range(n_runs)]))


def timed(work: Callable[[], object], n_runs: int = 3) -> float:
    """Median seconds, after one run that is not counted."""
    work()
    seconds = []
    for _ in range(n_runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
