"""Which positions of a prompt are worth a state."""

from hypothesis import given
from hypothesis import strategies as st

from cache.boundaries import FIRST_MARK, PromptShape, choose_captures, due_while_decoding

SHAPE = PromptShape(
    message_starts=(0, 1000, 1300, 1400),
    shared_points=(1500,),
    last_user_start=1400,
    system_end=1000,
)


def captures(
    shape: PromptShape = SHAPE,
    *,
    start: int = 0,
    end: int = 1502,
    parted_at: int | None = None,
    max_count: int = 16,
) -> tuple[int, ...]:
    return choose_captures(shape, start=start, end=end, parted_at=parted_at, max_count=max_count)


def test_every_kind_of_boundary_is_captured_when_there_is_room() -> None:
    assert {1000, 1300, 1400, 1500} <= set(captures())


def test_with_little_room_the_order_of_worth_decides() -> None:
    assert captures(parted_at=700, max_count=1) == (1500,)
    assert captures(parted_at=700, max_count=2) == (1400, 1500)
    assert captures(parted_at=700, max_count=3) == (1000, 1400, 1500)
    assert captures(parted_at=700, max_count=4) == (700, 1000, 1400, 1500)


def test_a_prompt_that_is_asked_again_is_kept_but_for_the_id_that_must_be_fed() -> None:
    again = choose_captures(SHAPE, start=1490, end=1502, parted_at=None, max_count=2, is_repeated=True)
    assert again == (1500, 1501)
    assert 1501 not in captures()
    ends = choose_captures(SHAPE, start=1501, end=1502, parted_at=None, max_count=2, is_repeated=True)
    assert ends == ()


def test_the_start_of_the_last_message_is_of_the_first_rank_however_close_to_a_shared_point() -> None:
    """A reply that is lost leaves another user's message in its place, which parts before that point."""
    header = PromptShape(
        message_starts=(0, 1000, *range(1010, 1400, 10), 1400, 1498),
        shared_points=(1500,),
        last_user_start=1400,
        system_end=1000,
    )
    assert captures(header, max_count=4) == (1000, 1400, 1498, 1500)
    assert 1498 in header.keep


def test_only_positions_of_the_part_to_feed_are_captured() -> None:
    assert min(captures(start=1300)) > 1300
    assert max(captures(end=1450)) < 1450


def test_where_the_next_render_agrees_with_the_whole_prompt_an_id_is_left_to_feed() -> None:
    """The same prompt may come again."""
    assert not {1399, 1400} & set(captures(end=1400))
    assert max(captures(end=1500)) == 1499


def test_marks_inside_a_long_message_double_their_gaps_away_from_its_end() -> None:
    shape = PromptShape(message_starts=(0, 10, 10_000), system_end=10)
    marks = [p for p in captures(shape, end=10_000, max_count=99) if p > 10]
    distances = [10_000 - p for p in reversed(marks)]
    gaps = [b - a for a, b in zip([0, *distances], distances, strict=False)]
    assert gaps == [FIRST_MARK * 2**i for i in range(len(gaps))]
    assert len(gaps) >= 6


def test_a_short_message_and_a_short_system_block_get_no_marks() -> None:
    shape = PromptShape(message_starts=(0, 70, 70 + FIRST_MARK), system_end=70)
    assert captures(shape, end=70 + 2 * FIRST_MARK) == (70, 70 + FIRST_MARK)


def test_a_system_block_gets_a_mark_in_front_of_its_last_line() -> None:
    """Before the first tick of a clock that stands there nobody knows of it."""
    shape = PromptShape(message_starts=(0, 900), system_end=900)
    assert captures(shape, end=900 + FIRST_MARK) == (452, 708, 900 - FIRST_MARK, 900)


def test_a_first_rank_position_close_behind_another_is_left_out() -> None:
    shape = PromptShape(message_starts=(0, 100), shared_points=(200, 202), last_user_start=100)
    assert {200, 202} & set(captures(shape, end=203)) == {200}


def test_a_prompt_without_structure_still_gets_marks() -> None:
    assert len(captures(PromptShape(), end=5000)) >= 5


positions = st.integers(0, 5000)


@given(
    st.lists(positions, unique=True, max_size=30),
    st.lists(positions, unique=True, max_size=3),
    positions,
    st.integers(0, 4999),
    st.integers(1, 5000),
    st.none() | positions,
    st.integers(1, 20),
)
def test_captures_are_ascending_within_the_part_to_feed_and_within_the_count(
    starts: list[int],
    shared: list[int],
    system_end: int,
    start: int,
    n: int,
    parted_at: int | None,
    max_count: int,
) -> None:
    shape = PromptShape(tuple(sorted(starts)), tuple(sorted(shared)), None, system_end)
    chosen = captures(shape, start=start, end=start + n, parted_at=parted_at, max_count=max_count)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) <= max_count
    assert all(start < p < start + n for p in chosen)


def test_a_state_is_due_now_and_then_while_decoding() -> None:
    newest, kept = 0, []
    for length in range(1, 2000):
        if due_while_decoding(length, newest):
            newest = length
            kept.append(length)
    assert kept == [512, 1024, 1536]
