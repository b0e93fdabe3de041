"""The sentence that says what was reused, and why no more."""

from __future__ import annotations

import numpy as np

from cache.boundaries import PromptShape
from cache.entry import RunningEntry
from cache.planner import SlotKey, TokenIds
from cache.selection import Choice
from cache.store import Store
from server.engine.planning import reason
from tests.fakes.cache_kit import METADATA, OTHER, SLOT, make_store
from tests.fakes.fake_state import FakeState

SHAPE = PromptShape(message_starts=(0, 100), shared_points=(198,), last_user_start=100, system_end=100)


def words(first: int, n: int) -> TokenIds:
    return np.arange(first, first + n, dtype=np.uint32)


SYSTEM, HELLO, BYE = words(1000, 100), words(2000, 100), words(3000, 100)


def chat(*parts: TokenIds) -> TokenIds:
    return np.concatenate(parts)


def remembering(*, share_histories: bool = False) -> Store:
    """A store with one conversation of 300 ids: system, a question, its reply."""
    store = make_store(share_histories=share_histories)
    running = store.take(store.plan(SLOT, chat(SYSTEM, HELLO), SHAPE))
    feed(running, chat(SYSTEM, HELLO, BYE), (100, 136, 198))
    store.save(running)
    return store


def feed(running: RunningEntry, ids: TokenIds, captures: tuple[int, ...] = ()) -> None:
    state = running.state
    assert isinstance(state, FakeState)
    checkpoints = state.feed(ids.tolist(), captures)
    running.ids.extend(ids)
    for checkpoint in checkpoints:
        running.capture(checkpoint)


def plan(prompt: TokenIds, *, store: Store | None = None, slot: SlotKey = SLOT) -> Choice:
    return (store or remembering()).plan(slot, prompt, SHAPE)


def test_a_session_of_which_nothing_is_known() -> None:
    assert reason(plan(HELLO, store=make_store())) == "Nothing is retained for this session yet."


def test_a_prompt_that_goes_on() -> None:
    prompt = chat(SYSTEM, HELLO, BYE, HELLO)
    assert reason(plan(prompt)) == "The prompt continues the retained entry; 300 tokens are reused."


def test_a_prompt_that_is_retained_whole() -> None:
    assert reason(plan(chat(SYSTEM, HELLO))) == (
        "The whole prompt is retained, and its last token must be fed anew; 198 tokens are reused."
    )


def test_the_place_where_the_prompt_left_the_entry_is_named() -> None:
    choice = plan(chat(SYSTEM, HELLO[:50], BYE))
    assert choice.diverged_at == 150
    assert reason(choice, lambda p: f"message {p // 100}") == (
        "The prompt leaves the retained entry in message 1; "
        "136 tokens are reused, copied from entry 1, which goes on."
    )


def test_a_prompt_that_leaves_before_the_first_checkpoint() -> None:
    assert reason(plan(chat(SYSTEM[:90], BYE))) == (
        "The prompt leaves the retained entry in token 90; no checkpoint lies before that point."
    )


def test_a_nonce_in_the_first_line_is_said_to_cost_everything() -> None:
    assert reason(plan(chat(SYSTEM[:20], BYE))) == (
        "The prompt leaves the retained entry in token 20, "
        "so near its beginning that no state before it could save anything."
    )


def test_a_conversation_that_branches_off_names_its_parent() -> None:
    store = remembering()
    choice = plan(chat(SYSTEM, BYE), store=store)
    assert choice.parent is not None
    assert reason(choice).endswith("100 tokens are reused, copied from entry 1, which goes on.")
    running = store.take(choice)
    feed(running, BYE)
    store.save(running)
    assert [entry.parent for entry in store.slots()[0].entries] == [None, choice.parent]


def test_what_is_shared_by_another_session_has_no_parent() -> None:
    assert plan(chat(SYSTEM, HELLO), slot=OTHER).parent is None


def test_where_histories_are_shared_the_other_conversation_is_named() -> None:
    choice = plan(chat(SYSTEM, HELLO, BYE[:50], HELLO), store=remembering(share_histories=True), slot=OTHER)
    assert reason(choice) == "198 tokens are reused, copied from a conversation of another session."
    assert choice.parent is not None
    assert choice.parent.slot == SLOT


def test_a_prompt_that_has_nothing_in_common() -> None:
    assert reason(plan(BYE)) == "The prompt differs from everything retained at its first token."


def test_the_system_prompt_of_another_session() -> None:
    assert reason(plan(chat(SYSTEM, HELLO, BYE), slot=OTHER)) == (
        "100 tokens are reused, copied from the system prompt of another session."
    )


def test_a_request_that_still_runs() -> None:
    store = make_store()
    running = store.take(store.plan(SLOT, chat(SYSTEM, HELLO), SHAPE))
    feed(running, SYSTEM, (100,))
    assert reason(plan(chat(SYSTEM, BYE), store=store)) == (
        "The prompt continues the retained entry; "
        "100 tokens are reused, copied from a request that still runs."
    )


def test_another_model_is_named() -> None:
    store = remembering()
    store.metadata = METADATA.__class__(
        **{name: getattr(METADATA, name) for name in METADATA.__dataclass_fields__} | {"kv_dtype": "q8"}
    )
    assert reason(plan(chat(SYSTEM, BYE), store=store)) == (
        "The retained entry has another kv_dtype, so nothing of it can be reused."
    )
