"""The planner's rules: those of the Rust planner it is ported from, and the one added here."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.planner import (
    AdapterId,
    CrossTurnPrefixEntry,
    CrossTurnSlotId,
    ExactAppend,
    FullRefill,
    PrefixRestorePlan,
    ReplayFromCheckpoint,
    TokenIds,
    checkpoint_survives_save,
    longest_common_token_prefix,
    plan_prefix_reuse,
)
from tests.fakes.cache_kit import METADATA


def ids(*tokens: int) -> TokenIds:
    return np.array(tokens, dtype=np.uint32)


def entry(*tokens: int, gdn_snapshot_len: int | None = None) -> CrossTurnPrefixEntry:
    n = len(tokens)
    return CrossTurnPrefixEntry(
        slot_id=CrossTurnSlotId.DEFAULT,
        metadata=METADATA,
        token_ids=ids(*tokens),
        represented_len=n,
        gdn_snapshot_len=n if gdn_snapshot_len is None else gdn_snapshot_len,
    )


def plan(old: CrossTurnPrefixEntry | None, prompt: TokenIds, *checkpoints: int) -> PrefixRestorePlan:
    return plan_prefix_reuse(old, METADATA, prompt, checkpoints)


def test_the_common_prefix_of_equal_ids_is_all_of_them() -> None:
    assert longest_common_token_prefix(ids(1, 2, 3), ids(1, 2, 3)) == 3


def test_no_ids_or_a_first_difference_share_nothing() -> None:
    assert longest_common_token_prefix(ids(), ids(1, 2, 3)) == 0
    assert longest_common_token_prefix(ids(1, 2, 3), ids()) == 0
    assert longest_common_token_prefix(ids(9), ids(1, 2, 3)) == 0


def test_the_common_prefix_ends_at_the_first_difference() -> None:
    assert longest_common_token_prefix(ids(1, 2, 3), ids(1, 2, 9)) == 2
    assert longest_common_token_prefix(ids(1, 9, 3), ids(1, 2, 3)) == 1


def test_the_common_prefix_is_bounded_by_the_shorter_side() -> None:
    assert longest_common_token_prefix(ids(1, 2), ids(1, 2, 3, 4)) == 2
    assert longest_common_token_prefix(ids(1, 2, 3, 4), ids(1, 2)) == 2


def test_without_an_entry_everything_is_fed() -> None:
    got = plan(None, ids(1, 2, 3))
    assert got.mode == FullRefill()
    assert (got.suffix_start, got.suffix_len, got.old_represented_len) == (0, 3, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_fingerprint", 999),
        ("tokenizer_fingerprint", 999),
        ("adapter_id", AdapterId(7)),
        ("vocab_size", 1001),
        ("max_cache_len", 8192),
        ("kv_dtype", "q8"),
        ("rope_theta", 1e6),
        ("partial_rotary_factor", 0.25),
        ("layer_types", ("full_attention",)),
        ("chat_template_version", 2),
    ],
)
def test_any_metadata_field_that_differs_rules_the_entry_out_and_is_named(field: str, value: object) -> None:
    other = replace(METADATA, **{field: value})  # type: ignore[arg-type]
    got = plan_prefix_reuse(entry(1, 2, 3), other, ids(1, 2, 3, 4), ())
    assert got.mode == FullRefill()
    assert (got.reusable_len, got.mismatch) == (0, field)


def test_an_empty_prompt_reuses_nothing() -> None:
    assert plan(entry(1, 2, 3), ids()).mode == FullRefill()


def test_a_prompt_that_shares_no_id_reuses_nothing() -> None:
    got = plan(entry(1, 2, 3), ids(9, 8, 7))
    assert got.mode == FullRefill()
    assert got.shared_token_prefix_len == 0


def test_a_prompt_that_goes_on_from_the_entry_appends_to_it() -> None:
    got = plan(entry(1, 2, 3), ids(1, 2, 3, 4, 5))
    assert got == PrefixRestorePlan(
        mode=ExactAppend(),
        shared_token_prefix_len=3,
        reusable_len=3,
        suffix_start=3,
        suffix_len=2,
        old_represented_len=3,
    )


def test_an_exact_repeat_without_a_checkpoint_is_fed_anew() -> None:
    got = plan(entry(1, 2, 3), ids(1, 2, 3))
    assert got.mode == FullRefill()
    assert (got.shared_token_prefix_len, got.old_represented_len, got.suffix_len) == (3, 3, 3)


def test_an_exact_repeat_leaves_an_id_to_feed_though_a_checkpoint_stands_at_its_end() -> None:
    got = plan(entry(1, 2, 3), ids(1, 2, 3), 1, 2, 3)
    assert got.mode == ReplayFromCheckpoint(2)
    assert got.suffix_len == 1


def test_a_prompt_that_is_a_prefix_of_the_entry_leaves_an_id_to_feed() -> None:
    got = plan(entry(1, 2, 3, 4, 5), ids(1, 2, 3), 3, 4)
    assert got.mode == FullRefill()


def test_appending_needs_the_recurrent_state_at_the_very_end() -> None:
    assert plan(entry(1, 2, 3, gdn_snapshot_len=2), ids(1, 2, 3, 4)).mode == FullRefill()


def test_an_edit_without_a_checkpoint_is_fed_anew() -> None:
    got = plan(entry(1, 2, 3), ids(1, 2, 9, 9))
    assert got.mode == FullRefill()
    assert (got.shared_token_prefix_len, got.old_represented_len) == (2, 3)


def test_a_shorter_prompt_without_a_checkpoint_is_fed_anew() -> None:
    got = plan(entry(1, 2, 3, 4, 5), ids(1, 2, 3))
    assert got.mode == FullRefill()
    assert got.shared_token_prefix_len == 3


def test_an_edit_replays_from_a_checkpoint_at_the_divergence() -> None:
    got = plan(entry(1, 2, 3, 4, 5), ids(1, 2, 3, 9, 9), 3)
    assert got.mode == ReplayFromCheckpoint(3)
    assert (got.reusable_len, got.suffix_start, got.suffix_len) == (3, 3, 2)


def test_a_checkpoint_past_the_divergence_is_not_used() -> None:
    assert plan(entry(1, 2, 3, 4, 5), ids(1, 2, 3, 9, 9), 4).mode == FullRefill()


def test_the_deepest_valid_checkpoint_wins() -> None:
    assert plan(entry(1, 2, 3, 4, 5), ids(1, 2, 3, 9, 9), 1, 3, 2, 4).mode == ReplayFromCheckpoint(3)


def test_a_checkpoint_survives_a_save_only_on_all_three_conditions() -> None:
    assert checkpoint_survives_save(3, 5, 8)
    assert checkpoint_survives_save(5, 5, 8)
    assert not checkpoint_survives_save(0, 5, 8)
    assert not checkpoint_survives_save(6, 5, 8)
    assert not checkpoint_survives_save(8, 8, 8)
    assert not checkpoint_survives_save(1, 5, 0)


short_ids = st.lists(st.integers(0, 2), max_size=12).map(lambda tokens: ids(*tokens))


@given(short_ids, short_ids)
def test_the_common_prefix_equals_counting_one_by_one(a: TokenIds, b: TokenIds) -> None:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    assert longest_common_token_prefix(a, b) == n


@given(short_ids, short_ids, st.sets(st.integers(0, 14)))
def test_no_plan_reuses_past_the_first_difference_or_leaves_nothing_to_feed(
    old: TokenIds, prompt: TokenIds, checkpoints: set[int]
) -> None:
    got = plan(entry(*old.tolist()), prompt, *checkpoints)
    assert got.reusable_len <= got.shared_token_prefix_len <= longest_common_token_prefix(old, prompt)
    assert got.reusable_len + got.suffix_len == len(prompt)
    assert got.suffix_len >= 1 or len(prompt) == 0


def test_a_slot_id_prints_as_sixteen_hex_digits() -> None:
    assert str(CrossTurnSlotId.DEFAULT) == "0000000000000000"
    assert len(str(CrossTurnSlotId.for_session(None, "a"))) == 16


def test_a_request_without_tenant_and_key_has_the_default_slot() -> None:
    assert CrossTurnSlotId.for_session(None, None) == CrossTurnSlotId.DEFAULT


def test_slots_of_two_tenants_never_meet() -> None:
    pairs = [(None, None), ("a", None), ("b", None), ("", None), (None, ""), (None, "a"), ("", "")]
    pairs += [("a", "b"), ("ab", ""), ("", "ab"), ("b", "a"), (None, "ab"), ("a", "\ud800")]
    assert len({CrossTurnSlotId.for_session(*pair) for pair in pairs}) == len(pairs)


def test_a_slot_id_is_the_same_in_every_process() -> None:
    assert CrossTurnSlotId.for_session("tenant", "key") == CrossTurnSlotId.for_session("tenant", "key")
    assert CrossTurnSlotId.for_session(None, "session").value == 0xC271D9092055A769
