"""Prompts of unlike lengths in one pass: each is read as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest

from model.backend import detect
from model.checkpoint.load import load
from model.forward import Forward, Part, Prefilled
from model.layers.gdn import Gdn
from model.layers.ragged import CHUNK, InChunks, Ragged
from model.state import Recurrent, State
from tests.fakes import tiny

IDS = [10 + i * i % 90 for i in range(600)]
Wanted = Sequence[tuple[int, int, tuple[int, ...]]]
# By sequence: tokens before, tokens fed, captures.
CASES: dict[str, Wanted] = {
    "one": [(30, 150, (70, 180))],
    "equal lengths": [(0, 80, ()), (0, 80, (80,))],
    "one beside long ones": [(100, 1, (101,)), (0, 300, (1, 64, 130)), (37, 2, ())],
    "borders of chunks": [(64, 128, (128, 192)), (1, 61, (62,)), (0, 65, (2, 63, 64, 65)), (5, 64, ())],
}


@pytest.fixture(scope="module")
def moe_forward(tmp_path_factory: pytest.TempPathFactory) -> Forward:
    return load(tiny.write_text(tmp_path_factory.mktemp("moe"), tiny.MOE), dtype="float32")


@pytest.fixture(params=["dense", "experts"])
def forward(request: pytest.FixtureRequest, tiny_forward: Forward, moe_forward: Forward) -> Forward:
    return {"dense": tiny_forward, "experts": moe_forward}[request.param]


def begun(forward: Forward, n_past: int, first: int) -> State:
    state = forward.new_state()
    if n_past:
        forward.prefill(state, np.array(IDS[first : first + n_past], np.uint32))
    return state


def parts_of(forward: Forward, wanted: Wanted) -> list[Part]:
    return [
        Part(begun(forward, n_past, i), np.array(IDS[7 * i : 7 * i + n], np.uint32), captures)
        for i, (n_past, n, captures) in enumerate(wanted)
    ]


def differ(one: Prefilled, other: Prefilled) -> float:
    assert [c.length for c in one.checkpoints] == [c.length for c in other.checkpoints]
    pairs = [(one.logits, other.logits)]
    for a, b in zip(one.checkpoints, other.checkpoints, strict=True):
        pairs += zip(a.arrays, b.arrays, strict=True)
    return max(float(mx.abs(x - y).max()) for x, y in pairs)


def apart(forward: Forward, wanted: Wanted) -> float:
    """How far what is read together is from what is read alone: logits, captures, and what comes after."""
    parts = parts_of(forward, wanted)
    read = forward._together_ragged(parts)
    follow = np.array([7, 8, 9], np.uint32)
    error = 0.0
    for part, own, single in zip(parts, read, parts_of(forward, wanted), strict=True):
        there = forward.prefill(single.state, single.ids, capture_at=single.capture_at)
        part.state.check()
        assert part.state.length == single.state.length
        after = forward.prefill(part.state, follow), forward.prefill(single.state, follow)
        error = max(error, differ(own, there), differ(*after))
    return error


@pytest.mark.parametrize("case", CASES)
def test_each_prompt_is_read_as_if_it_were_alone(forward: Forward, case: str) -> None:
    assert apart(forward, CASES[case]) < 2e-4


def test_a_capture_made_together_is_a_place_to_go_back_to(forward: Forward) -> None:
    parts = parts_of(forward, [(40 * i, 90 + i, (40 * i + 66,)) for i in range(3)])
    read = forward.prefill_together(parts)
    for i, (part, own) in enumerate(zip(parts, read, strict=True)):
        part.state.restore(own.checkpoints[0])
        fresh = begun(forward, 40 * i, i)
        forward.prefill(fresh, part.ids[:66])
        follow = np.array(IDS[100:130], np.uint32)
        assert differ(forward.prefill(part.state, follow), forward.prefill(fresh, follow)) < 2e-4


Walked = tuple[mx.array, list[Recurrent], list[list[Recurrent]]]


def swapped(walked: Walked) -> Walked:
    out, ends, captured = walked
    return out, ends[::-1], captured


def at_the_end(walked: Walked) -> Walked:
    out, ends, captured = walked
    return out, ends, [[end] * len(own) for end, own in zip(ends, captured, strict=True)]


@pytest.mark.skipif(detect().kind == "cuda", reason="its layers walk on their own: see test_cuda.py")
@pytest.mark.parametrize("fault", [swapped, at_the_end])
def test_swapped_sequences_and_captures_of_another_place_are_seen(
    tiny_forward: Forward, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Walked], Walked]
) -> None:
    original = Gdn.prefill_ragged

    def broken(self: Gdn, x: mx.array, pasts: Sequence[Recurrent], ragged: Ragged) -> Walked:
        return fault(original(self, x, pasts, ragged))

    monkeypatch.setattr(Gdn, "prefill_ragged", broken)
    assert apart(tiny_forward, [(0, 80, ()), (0, 80, (40,))]) > 1e-2


def test_after_a_fault_in_the_pass_every_state_is_what_it_was(
    tiny_forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = CASES["one beside long ones"]
    parts = parts_of(tiny_forward, wanted)

    def broken(*_: object) -> list[Prefilled]:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(tiny_forward, "_finish", broken)
        with pytest.raises(RuntimeError, match="planted"):
            tiny_forward.prefill_together(parts)
    for part, single in zip(parts, parts_of(tiny_forward, wanted), strict=True):
        part.state.truncate(part.state.position)
        mine, theirs = (tiny_forward.prefill(p.state, p.ids, capture_at=p.capture_at) for p in (part, single))
        assert differ(mine, theirs) == 0.0


# -- the layout in chunks --------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [[5, 64], [61, 62, 1, 64], [130, 3, 200]])
def test_each_sequence_begins_with_a_chunk_and_has_its_window_in_front(n_tokens: list[int]) -> None:
    layout, n_all = InChunks.of(n_tokens), sum(n_tokens)
    source = np.array(layout.source)
    assert len(source) % CHUNK == 0
    np.testing.assert_array_equal(source[np.array(layout.tokens)], np.arange(n_all))
    for i, start in enumerate(layout.starts):
        assert start == CHUNK * int(layout.first_chunks[i])
        if i:
            np.testing.assert_array_equal(source[start - 3 : start], n_all + 3 * (i - 1) + np.arange(3))
    assert int(layout.first_chunks[len(n_tokens)]) == len(source) // CHUNK
    n_inert = len(source) - n_all - 3 * (len(n_tokens) - 1)
    assert (source == n_all + 3 * (len(n_tokens) - 1)).sum() == n_inert
