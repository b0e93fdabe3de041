"""Checks the whole model: every way to process the same tokens must give the same logits."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from model.device import Device
from model.forward import Forward
from model.state import State
from server.check.result import Section, apart, logits_apart, numbers, pass_bound

_N_PROMPT = 333
_N_STEPS = 8
_CAPTURE = 326  # in the middle of a chunk, and so near the end that the effect of a wrong state has not faded
_PART = 100
_LENGTHS = (70, 150, 40)

Logits = NDArray[np.float32]


def check_passes(forward: Forward, device: Device) -> Section:
    """Compare prefill, decode, a continued state, a prompt in parts, and a batch."""
    section = Section("ways to the same logits (relative error)")
    bound = pass_bound(forward.fingerprint.dtype, device)
    random = np.random.default_rng(1)
    ids = random.integers(0, forward.config.vocab_size, _N_PROMPT, dtype=np.uint32)
    state = forward.new_state()
    read = forward.prefill(state, ids, capture_at=[_CAPTURE])
    wanted, after = np.array(read.logits), numbers([*state.snapshot().arrays])
    decoded, state_decoded = _decoded(forward, ids)
    error = max(logits_apart(decoded, wanted), apart(state_decoded, after))
    section.judge("decode after prefill", error, bound)
    forked = state.fork(read.checkpoints[0])
    section.judge("a captured state, continued", _continued(forward, forked, ids, wanted, after), bound)
    state.restore(read.checkpoints[0])
    section.judge("the same state, gone back to", _continued(forward, state, ids, wanted, after), bound)
    section.judge("tokens guessed, some of them kept", _guessed(forward, ids, wanted, after), bound)
    section.judge("a prompt in parts", logits_apart(_in_parts(forward, ids), wanted), bound)
    together, alone = _batch(forward, together=True), _batch(forward, together=False)
    error = max(logits_apart(a, b) for a, b in zip(together, alone, strict=True))
    section.judge(f"a batch of {len(_LENGTHS)} and each alone", error, bound)
    return section


def _decoded(forward: Forward, ids: NDArray[np.uint32]) -> tuple[Logits, list[Logits]]:
    """The logits and the recurrent states after the last tokens are fed one by one."""
    batch = forward.new_batch()
    batch.join(0, _read(forward, ids[:-_N_STEPS]))
    for i in range(len(ids) - _N_STEPS, len(ids)):
        logits = batch.step(mx.array(ids[i : i + 1]))
    return np.array(logits[0]), numbers([*batch.snapshot(0).arrays])


def _continued(
    forward: Forward, state: State, ids: NDArray[np.uint32], wanted: Logits, after: list[Logits]
) -> float:
    """The error of the logits and of the recurrent states after ``ids``, of which a state is continued."""
    found = np.array(forward.prefill(state, ids[_CAPTURE:]).logits)
    return max(logits_apart(found, wanted), apart(numbers([*state.snapshot().arrays]), after))


def _guessed(forward: Forward, ids: NDArray[np.uint32], wanted: Logits, after: list[Logits]) -> float:
    """The same error after the last tokens were fed several at once with wrong ones, which were then
    removed."""
    batch = forward.new_batch()
    batch.join(0, _read(forward, ids[:-_N_STEPS]))
    for start in range(len(ids) - _N_STEPS, len(ids), 4):
        tokens = np.concatenate([ids[start : start + 4], ids[:2]])
        logits = batch.extend(mx.array(tokens)[None])
        batch.keep([4])
    found = np.array(logits[0, 3])
    return max(logits_apart(found, wanted), apart(numbers([*batch.snapshot(0).arrays]), after))


def _in_parts(forward: Forward, ids: NDArray[np.uint32]) -> Logits:
    before, forward.part_tokens = forward.part_tokens, _PART
    try:
        return np.array(forward.prefill(forward.new_state(), ids).logits)
    finally:
        forward.part_tokens = before


def _batch(forward: Forward, *, together: bool) -> list[Logits]:
    """The logits of a few steps of sequences of different lengths, in one batch or in one each."""
    random = np.random.default_rng(2)
    n_vocab = forward.config.vocab_size
    prompts = [random.integers(0, n_vocab, n, dtype=np.uint32) for n in _LENGTHS]
    steps = random.integers(0, n_vocab, (3, len(_LENGTHS)), dtype=np.uint32)
    members = [tuple(range(len(prompts)))] if together else [(i,) for i in range(len(prompts))]
    found: dict[int, Logits] = {}
    for keys in members:
        batch = forward.new_batch()
        for key in keys:
            batch.join(key, _read(forward, prompts[key]))
        for ids in steps:
            logits = batch.step(mx.array(ids[list(keys)]))
        found |= {key: np.array(logits[row]) for row, key in enumerate(keys)}
    return [found[key] for key in sorted(found)]


def _read(forward: Forward, ids: NDArray[np.uint32]) -> State:
    state = forward.new_state()
    forward.prefill(state, ids)
    return state
