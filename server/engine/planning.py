"""Chooses what of the memory a prompt continues from, and puts the choice in words for the client."""

from __future__ import annotations

from dataclasses import dataclass

from cache.planner import TokenIds
from cache.selection import Choice
from cache.store import Store
from model.text.chat import RenderedPrompt
from model.text.tokenizer import TextTokenizer
from server.engine.fed_ids import adopt_fed_ids
from server.engine.report import plan_report, prompt_shape
from server.engine.ticket import Prompted
from server.events import PlanReport, WarmRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done for one prompt.

    Attributes:
        prompt: with the ids that were fed where a message reads the same, if those are to be kept.
        choice: what the store will do; valid until it is next changed.
        report: the same for the client.
        quotes: what the reply may quote besides its prompt, as long as the choice is not taken.
    """

    prompt: RenderedPrompt
    choice: Choice
    report: PlanReport
    quotes: tuple[TokenIds, ...]


class Planner:
    """Plans prompts over the store.

    Args:
        keeps_fed_ids: whether a message that reads the same keeps the ids that were fed for it.
        end_ids: token ids that end a message.
    """

    def __init__(
        self, store: Store, tokenizer: TextTokenizer, end_ids: frozenset[int], *, keeps_fed_ids: bool
    ) -> None:
        self._store = store
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._keeps_fed_ids = keeps_fed_ids

    def plan(self, request: Prompted) -> Plan:
        """Bring back from disk what helps, and choose. Nothing is taken yet."""
        self._store.recall(request.slot, request.prompt.ids)
        prompt, n_adopted = request.prompt, 0
        choice = self._choose(request, prompt)
        if self._keeps_fed_ids and choice.source is not None and choice.diverged_at is not None:
            prompt, n_adopted = adopt_fed_ids(
                prompt,
                choice.source.ids.view,
                self._tokenizer,
                end_ids=self._end_ids,
                max_tokens=self._store.metadata.max_cache_len - 1,
            )
            choice = self._choose(request, prompt)
        report = plan_report(choice, prompt, self._tokenizer.decode, n_adopted)
        return Plan(prompt, choice, report, _left_behind(choice))

    def n_suffix(self, request: Prompted) -> int:
        """How many tokens of the prompt must be fed, as far as memory alone can tell."""
        return self._choose(request, request.prompt).plan.suffix_len

    def _choose(self, request: Prompted, prompt: RenderedPrompt) -> Choice:
        is_guess = isinstance(request, WarmRequest)
        return self._store.plan(request.slot, prompt.ids, prompt_shape(prompt), is_guess=is_guess)


def _left_behind(choice: Choice) -> tuple[TokenIds, ...]:
    """What the prompt leaves of its own session's conversation: the reply that is made anew, the thought that
    was stripped. Of other sessions nothing, for drafts that come true can be told by the time."""
    if choice.source is None or choice.source.slot != choice.slot:
        return ()
    start = max(choice.plan.shared_token_prefix_len - _CONTEXT_TOKENS, 0)
    return (choice.source.ids.view[start:].copy(),)


_CONTEXT_TOKENS = 32
"""Tokens before the point where the prompt left its conversation, by which the place is found again."""
