"""A few tokens of several sequences in one pass: each as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from model.forward import Forward, Part, Prefilled
from model.state import State

IDS = [10 + i * i % 90 for i in range(400)]


def begun(forward: Forward, n_past: int) -> State:
    state = forward.new_state()
    if n_past:
        forward.prefill(state, np.array(IDS[:n_past], np.uint32))
    return state


def same(one: Prefilled, other: Prefilled) -> None:
    np.testing.assert_allclose(np.array(one.logits), np.array(other.logits), atol=2e-4)
    assert [c.length for c in one.checkpoints] == [c.length for c in other.checkpoints]
    for a, b in zip(one.checkpoints, other.checkpoints, strict=True):
        for x, y in zip(a.arrays, b.arrays, strict=True):
            np.testing.assert_allclose(np.array(x), np.array(y), atol=2e-4)


@pytest.mark.parametrize(
    "wanted",
    [
        [(0, 5, ())],
        [(0, 5, (3,)), (0, 5, ())],
        [(100, 1, ()), (0, 64, (1, 30, 64)), (37, 7, (40,)), (200, 64, (230, 250))],
        [(64, 33, (97,)), (65, 32, (66, 97)), (0, 2, (1,))],
    ],
)
def test_each_sequence_is_as_if_it_were_alone(
    tiny_forward: Forward, wanted: Sequence[tuple[int, int, tuple[int, ...]]]
) -> None:
    together, alone = [], []
    for i, (n_past, n, captures) in enumerate(wanted):
        ids = np.array(IDS[i : i + n], np.uint32)
        together.append(Part(begun(tiny_forward, n_past), ids, captures))
        state = begun(tiny_forward, n_past)
        alone.append((state, tiny_forward.prefill(state, ids, capture_at=captures)))
    read = tiny_forward.prefill_together(together)
    follow = np.array([7, 8, 9], np.uint32)
    for part, own, (state, there) in zip(together, read, alone, strict=True):
        part.state.check()
        assert part.state.length == state.length
        same(own, there)
        same(tiny_forward.prefill(part.state, follow), tiny_forward.prefill(state, follow))


def test_a_capture_made_together_is_a_place_to_go_back_to(tiny_forward: Forward) -> None:
    parts = [
        Part(begun(tiny_forward, 50 * i), np.array(IDS[:20], np.uint32), (50 * i + 9,)) for i in range(3)
    ]
    read = tiny_forward.prefill_together(parts)
    for i, (part, own) in enumerate(zip(parts, read, strict=True)):
        part.state.restore(own.checkpoints[0])
        fresh = begun(tiny_forward, 50 * i)
        tiny_forward.prefill(fresh, np.array(IDS[:9], np.uint32))
        follow = np.array(IDS[100:130], np.uint32)
        same(tiny_forward.prefill(part.state, follow), tiny_forward.prefill(fresh, follow))
