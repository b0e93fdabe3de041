"""Measures prefill and decode, and their memory, beside mlx-lm with the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import generate_step

from model.forward import Forward
from server.check.result import Section

LENGTHS = (512, 2048)
_N_STEPS = 24
_N_TIMES = 3
_ENOUGH_S = 6.0
"""Passes are not repeated beyond this."""
_PATIENCE_S = 12.0
"""A longer prompt is skipped if a shorter one predicts that it takes longer than this."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second: of a prompt, and of a reply after it."""

    prefill: float
    decode: float


def time_mlx_lm(model: nn.Module, vocab_size: int) -> dict[int, Speed]:
    """Speeds by the length of the prompt; ``model`` is mlx-lm's, as it was loaded."""
    speeds = _by_length(lambda n: _time_generation(model, _ids(vocab_size, n)))
    mx.clear_cache()
    return speeds


def time_ours(forward: Forward) -> dict[int, Speed]:
    """The same for crossturn's passes, without its server."""
    forward.warm_up()
    return _by_length(lambda n: _time_passes(forward, _ids(forward.config.vocab_size, n)))


def _by_length(measure: Callable[[int], Speed]) -> dict[int, Speed]:
    speeds: dict[int, Speed] = {}
    for length in LENGTHS:
        if speeds and length / min(s.prefill for s in speeds.values()) > _PATIENCE_S:
            break
        speeds[length] = best(partial(measure, length), time.perf_counter)
    return speeds


def best(measure: Callable[[], Speed], clock: Clock) -> Speed:
    """The highest speeds of a few equal passes. The first pass is not counted: it compiles kernels for its
    shapes and takes memory from the system. Only where that takes longer than anybody waits does it count."""
    begun = clock()
    first = measure()
    now = clock()
    if now - begun > _PATIENCE_S:
        return first
    speeds = [measure()]
    while len(speeds) < _N_TIMES and clock() - now < _ENOUGH_S:
        speeds.append(measure())
    return Speed(max(s.prefill for s in speeds), max(s.decode for s in speeds))


def check_speed(ours: dict[int, Speed], theirs: dict[int, Speed], n_peak_bytes: int) -> Section:
    """The table of both."""
    section = Section("speed (tokens a second; mlx-lm with the same weights in brackets)")
    for length, speed in ours.items():
        other = theirs.get(length)
        for name, mine, its in (
            (f"prefill of {length} tokens", speed.prefill, other and other.prefill),
            (f"decode behind {length} tokens", speed.decode, other and other.decode),
        ):
            section.tell(name, f"{mine:.0f} ({f'{its:.0f}' if its else 'not tried: too slow'})")
    section.tell("peak memory", f"{n_peak_bytes / 2**30:.2f} GiB")
    return section


def _time_generation(model: nn.Module, ids: mx.array) -> Speed:
    start = time.perf_counter()
    times = [time.perf_counter() for _ in generate_step(ids, model, max_tokens=_N_STEPS + 1)]
    return _speed(ids.size, times[0] - start, times[-1] - times[0])


def _time_passes(forward: Forward, ids: mx.array) -> Speed:
    start = time.perf_counter()
    state = forward.new_state()
    logits = forward.prefill(state, np.array(ids)).logits
    batch = forward.new_batch()
    batch.join(0, state)
    token = mx.argmax(logits)[None]
    mx.eval(token)
    begun = time.perf_counter()
    for _ in range(_N_STEPS):
        following = mx.argmax(batch.step(token), axis=-1).astype(mx.uint32)
        mx.async_eval(following)  # type: ignore[no-untyped-call]
        token.item()  # as in a reply, where the host is one token behind
        token = following
    mx.eval(token)
    return _speed(ids.size, begun - start, time.perf_counter() - begun)


def _speed(n_tokens: int, prefill_s: float, decode_s: float) -> Speed:
    return Speed(n_tokens / prefill_s, _N_STEPS / decode_s)


def _ids(vocab_size: int, n: int) -> mx.array:
    return mx.array(np.random.default_rng(3).integers(0, vocab_size, n, dtype=np.uint32))
