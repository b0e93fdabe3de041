"""The sentence that says what was reused, and why no more."""

from __future__ import annotations

import numpy as np

from cache.boundaries import PromptShape
from cache.planner import SlotKey, TokenIds
from cache.selection import Choice
from cache.store import Store
from server.engine.report import reason
from tests.fakes.cache_kit import METADATA, OTHER, SLOT, make_store
from tests.fakes.fake_state import FakeState

SHAPE = PromptShape(message_starts=(0, 100), shared_points=(198,), last_user_start=100, system_end=100)


def words(first: int, n: int) -> TokenIds:
    return np.arange(first, first + n, dtype=np.uint32)


SYSTEM, HELLO, BYE = words(1000, 100), words(2000, 100), words(3000, 100)


def chat(*parts: TokenIds) -> TokenIds:
    return np.concatenate(parts)


def remembering() -> Store:
    """A store with one conversation of 300 ids: system, a question, its reply."""
    store = make_store()
    running = store.take(store.plan(SLOT, chat(SYSTEM, HELLO), SHAPE))
    state = running.state
    assert isinstance(state, FakeState)
    ids = chat(SYSTEM, HELLO, BYE)
    checkpoints = state.feed(ids.tolist(), (100, 136, 198))
    running.ids.extend(ids)
    for checkpoint in checkpoints:
        running.capture(checkpoint)
    store.save(running)
    return store


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
        "The prompt leaves the retained entry in message 1; 136 tokens are reused."
    )


def test_a_prompt_that_leaves_before_the_first_checkpoint() -> None:
    assert reason(plan(chat(SYSTEM[:50], BYE))) == (
        "The prompt leaves the retained entry in token 50; no checkpoint lies before that point."
    )


def test_a_prompt_that_has_nothing_in_common() -> None:
    assert reason(plan(BYE)) == "The prompt differs from everything retained at its first token."


def test_the_system_prompt_of_another_session() -> None:
    assert reason(plan(chat(SYSTEM, HELLO, BYE), slot=OTHER)) == (
        "100 tokens are reused, copied from the system prompt of another session."
    )


def test_a_request_that_still_runs() -> None:
    store = make_store()
    running = store.take(store.plan(SLOT, chat(SYSTEM, HELLO), SHAPE))
    state = running.state
    assert isinstance(state, FakeState)
    (checkpoint,) = state.feed(SYSTEM.tolist(), (100,))
    running.ids.extend(SYSTEM)
    running.capture(checkpoint)
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
