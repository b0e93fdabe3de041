"""The ring: checkpoints in order, and which of them go first where few may stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.ring import CheckpointRing, RingLimits, spread, weakest
from tests.fakes.fake_state import FakeCheckpoint

FREE = RingLimits()


def ring_of(*lengths: int, limits: RingLimits = FREE, n_bytes: int = 10) -> CheckpointRing:
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
    ring = ring_of(100, 200, 210, 300, limits=RingLimits(max_bytes=30))
    ring.thin(end=310)
    assert ring.lengths == (100, 200, 300)


def test_the_first_and_the_newest_stay_however_small_their_gaps_are() -> None:
    ring = ring_of(1, 2, 500, 999, 1000, limits=RingLimits(max_bytes=30))
    ring.thin(end=1001)
    assert ring.lengths == (1, 500, 1000)


def test_gaps_far_from_the_end_are_thinned_before_equal_gaps_near_it() -> None:
    ring = ring_of(1000, 2000, 3000, 98_000, 99_000, 100_000, limits=RingLimits(max_bytes=50))
    ring.thin(end=100_000)
    assert ring.lengths == (1000, 3000, 98_000, 99_000, 100_000)


def test_what_must_be_kept_is_thinned_last_even_over_the_limits() -> None:
    ring = ring_of(100, 200, 210, 300, limits=RingLimits(max_bytes=20))
    ring.thin(end=310, keep={210})
    assert ring.lengths == (100, 210, 300)


def test_without_a_limit_nothing_is_thinned() -> None:
    ring = ring_of(*range(100, 5100, 10))
    ring.thin(end=5100)
    assert len(ring) == 500


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="less than nothing"):
        RingLimits(max_bytes=-1)


@given(
    st.sets(st.integers(1, 10_000), min_size=2, max_size=40),
    st.integers(0, 150),
    st.sets(st.integers(1, 10_000), max_size=3),
)
def test_thinning_obeys_its_limit_and_keeps_both_ends(
    lengths: set[int], max_bytes: int, keep: set[int]
) -> None:
    ring = ring_of(*lengths, limits=RingLimits(max_bytes=max_bytes))
    ring.thin(end=max(lengths) + 1, keep=keep)
    must = {min(lengths), max(lengths), *(keep & lengths)}
    assert must <= set(ring.lengths)
    assert ring.n_bytes <= max(max_bytes, 10 * len(must))


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
