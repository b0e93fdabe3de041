"""The ring: few checkpoints, sparse and spread, bounded in count and in bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.ring import CheckpointRing, RingLimits, spread, weakest
from tests.fakes.fake_state import FakeCheckpoint

WIDE = RingLimits(max_count=100, max_ratio=1e9)


def ring_of(*lengths: int, limits: RingLimits = WIDE, n_bytes: int = 10) -> CheckpointRing:
    return CheckpointRing(limits, (FakeCheckpoint(n, n, n_bytes) for n in lengths))


def test_checkpoints_are_held_in_ascending_order_whatever_the_order_they_come_in() -> None:
    ring = ring_of(30, 10)
    ring.add(FakeCheckpoint(20, 0, 10))
    assert ring.lengths == (10, 20, 30)
    assert ring.at(20).length == 20
    assert ring.n_bytes == 30


def test_a_second_checkpoint_at_a_length_changes_nothing() -> None:
    ring = ring_of(10)
    ring.add(FakeCheckpoint(10, 99, 500))
    assert ring.n_bytes == 10


def test_asking_for_a_length_that_is_not_held_is_an_error() -> None:
    with pytest.raises(KeyError):
        ring_of(10).at(11)


def test_the_smallest_gap_is_thinned_first() -> None:
    ring = ring_of(100, 200, 210, 300, limits=RingLimits(max_count=3))
    ring.thin(end=310, live_bytes=10**6)
    assert ring.lengths == (100, 200, 300)


def test_the_first_and_the_newest_stay_however_small_their_gaps_are() -> None:
    ring = ring_of(1, 2, 500, 999, 1000, limits=RingLimits(max_count=3))
    ring.thin(end=1001, live_bytes=10**6)
    assert ring.lengths == (1, 500, 1000)


def test_gaps_far_from_the_end_are_thinned_before_equal_gaps_near_it() -> None:
    ring = ring_of(1000, 2000, 3000, 98_000, 99_000, 100_000, limits=RingLimits(max_count=5))
    ring.thin(end=100_000, live_bytes=10**9)
    assert ring.lengths == (1000, 3000, 98_000, 99_000, 100_000)


def test_what_must_be_kept_is_thinned_last_even_over_the_limits() -> None:
    ring = ring_of(100, 200, 210, 300, limits=RingLimits(max_count=2, min_count=2))
    ring.thin(end=310, live_bytes=10**6, keep={210})
    assert ring.lengths == (100, 210, 300)


def test_bytes_are_bounded_by_a_share_of_the_live_state() -> None:
    ring = ring_of(*range(100, 1100, 100), limits=RingLimits(max_count=100, max_ratio=0.5, min_count=2))
    ring.thin(end=1100, live_bytes=100)
    assert ring.n_bytes == 50


def test_a_short_conversation_keeps_a_few_checkpoints_whatever_they_weigh() -> None:
    ring = ring_of(100, 200, 300, 400, limits=RingLimits(max_count=100, max_ratio=0.01, min_count=3))
    ring.thin(end=410, live_bytes=100)
    assert len(ring) == 3


@pytest.mark.parametrize("limits", [{"max_count": 1}, {"min_count": 1}, {"max_ratio": -0.1}])
def test_limits_that_cannot_hold_first_and_newest_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="first and its newest"):
        RingLimits(**limits)  # type: ignore[arg-type]


@given(
    st.sets(st.integers(1, 10_000), min_size=2, max_size=40),
    st.integers(2, 12),
    st.floats(0, 2),
    st.sets(st.integers(1, 10_000), max_size=3),
)
def test_thinning_obeys_its_limits_and_keeps_both_ends(
    lengths: set[int], max_count: int, max_ratio: float, keep: set[int]
) -> None:
    limits = RingLimits(max_count=max_count, max_ratio=max_ratio, min_count=2)
    ring = ring_of(*lengths, limits=limits)
    ring.thin(end=max(lengths) + 1, live_bytes=100, keep=keep)
    must = {min(lengths), max(lengths), *(keep & lengths)}
    assert must <= set(ring.lengths)
    assert len(ring) <= max(max_count, len(must))
    assert ring.n_bytes <= max(max_ratio * 100, 10 * max(2, len(must)))


@given(
    st.sets(st.integers(1, 300), min_size=2, max_size=40), st.sets(st.integers(1, 300)), st.integers(2, 20)
)
def test_spreading_many_positions_is_dropping_the_weakest_one_by_one(
    positions: set[int], keep: set[int], max_count: int
) -> None:
    left = sorted(positions)
    end = left[-1] + 1
    while len(left) > max_count and (index := weakest(left, end, keep)) is not None:
        del left[index]
    assert spread(sorted(positions), end, keep, max_count) == left
