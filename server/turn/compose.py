"""Composes the engine's request from a turn: checks, tools, thinking, and the prompt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cache.planner import SlotKey, TokenIds
from model.errors import InputError, PromptTooLongError
from model.text.chat import RenderedPrompt
from server.events import GenerationRequest, ReplyFormat
from server.settings import Settings
from server.turn.served import Served, sampling_params
from server.turn.turn import Thinking, ToolUse, Turn, grammar_of, has_form, named_as, schema_note, tool_use_of

RESERVED_KWARGS = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""Variables of the template that only a turn's own attributes may set."""

N_COUNTED_CONTEXTS = 4
"""The longest prompt whose tokens are counted, in contexts."""

EFFORT_BUDGETS: Mapping[str, int] = {"minimal": 256, "low": 1024, "medium": 4096}
"""Thought tokens for each effort if the template has no words for efforts; higher ones are unlimited."""

TEMPLATE_EFFORTS: Mapping[str, str] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "xhigh": "xhigh",
    "max": "xhigh",
}
"""The words of templates that know efforts (Qwen3.8's). ``high`` is their default, without any word."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt is rendered from.

    Attributes:
        continues: whether the reply continues the last message.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, object]
    continues: bool


@dataclass(frozen=True, slots=True)
class ThinkingPlan:
    """How a turn's thinking is brought about.

    Attributes:
        template_kwargs: variables for the chat template.
        max_tokens: tokens after which the thought is closed; None for no limit.
    """

    template_kwargs: Mapping[str, object]
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ComposedTurn:
    """A turn, ready to run once :func:`with_grammar` has added its grammar.

    Attributes:
        use: how its tools are used.
    """

    turn: Turn
    conversation: Conversation
    generation: GenerationRequest
    use: ToolUse

    @property
    def has_form(self) -> bool:
        """Whether the reply must match a grammar."""
        return has_form(self.turn, self.use)


def compose(turn: Turn, served: Served, settings: Settings) -> ComposedTurn:
    """Check and render a turn, without the engine.

    Raises:
        InputError: the turn is at fault; names the field as the dialect does.
        NotFoundError: it asks for another model.
    """
    with named_as(turn.names):
        served.check_name(turn.model)
        thinking, use = _thinking(turn, served, settings), tool_use_of(turn)
        _check_length(turn, use)
        conversation = _conversation(turn, use, thinking)
        _check_prefill(turn, conversation)
        prompt = _noted(conversation, turn, served, settings)
        reply = ReplyFormat(
            stops=stops_of(turn.stop),
            tools=use.callable or None,
            max_thought_tokens=thinking.max_tokens,
            min_tokens=turn.min_tokens,
            ignore_eos=turn.ignore_eos,
        )
        generation = _generation(turn, served, prompt, reply)
    return ComposedTurn(turn, conversation, generation, use)


def with_grammar(composed: ComposedTurn, served: Served) -> ComposedTurn:
    """``composed`` with the grammar of its reply. Compiling may take seconds, so it is separate from
    composing: other turns need not wait for it, and a prompt that is too long is refused before it.

    Raises:
        InputError: a schema cannot be enforced; names the field as the dialect does.
    """
    with named_as(composed.turn.names):
        grammar = grammar_of(composed.turn, composed.use, served.grammars)
    reply = replace(composed.generation.reply, grammar=grammar)
    return replace(composed, generation=replace(composed.generation, reply=reply))


def count_tokens(turn: Turn, served: Served, settings: Settings) -> int:
    """The number of tokens of a turn's prompt, which may be longer than the context.

    Raises:
        InputError: the turn cannot be rendered; names the field as the dialect does.
        NotFoundError: it asks for another model.
    """
    with named_as(turn.names):
        served.check_name(turn.model)
        use = tool_use_of(turn)
        conversation = _conversation(turn, use, _thinking(turn, served, settings))
        return len(_noted(conversation, turn, served, settings, is_limited=False).ids)


def plan_thinking(thinking: Thinking, default: bool | None, variables: Collection[str]) -> ThinkingPlan:
    """``thinking``, or the server's ``default``, in terms of the template's ``variables``."""
    enabled = thinking.enabled
    if enabled is None and thinking.effort is not None:
        enabled = thinking.effort != "none"
    if enabled is None:
        enabled = default
    kwargs: dict[str, object] = {} if enabled is None else {"enable_thinking": enabled}
    budget = thinking.budget
    effort = thinking.effort or "none"
    if "reasoning_effort" in variables:
        if effort in TEMPLATE_EFFORTS:
            kwargs["reasoning_effort"] = TEMPLATE_EFFORTS[effort]
    elif budget is None:
        budget = EFFORT_BUDGETS.get(effort)
    return ThinkingPlan(kwargs, budget)


def _thinking(turn: Turn, served: Served, settings: Settings) -> ThinkingPlan:
    return plan_thinking(turn.thinking, settings.thinking, served.chat.variables)


def _conversation(turn: Turn, use: ToolUse, thinking: ThinkingPlan) -> Conversation:
    _check_kwargs(turn)
    return Conversation(
        messages=turn.messages,
        tools=use.tools,
        template_kwargs={**_kwargs_of(turn), **thinking.template_kwargs},
        continues=_continues(turn),
    )


def _noted(
    conversation: Conversation, turn: Turn, served: Served, settings: Settings, *, is_limited: bool = True
) -> RenderedPrompt:
    """The prompt with the note on the answer's schema, unless the note would make it too long."""
    note = schema_note(turn.response_format, turn.messages) if settings.show_schemas else None
    if note is not None:
        with suppress(PromptTooLongError):
            return render(conversation, served, note=note, is_limited=is_limited)
    return render(conversation, served, is_limited=is_limited)


def render(
    conversation: Conversation, served: Served, *, note: str | None = None, is_limited: bool = True
) -> RenderedPrompt:
    """The prompt. One longer than the context is refused if ``is_limited``, one much longer always."""
    return served.chat.render(
        conversation.messages,
        tools=conversation.tools,
        template_kwargs=conversation.template_kwargs,
        continue_final=conversation.continues,
        note=note,
        max_tokens=served.info.context_length * (1 if is_limited else N_COUNTED_CONTEXTS),
    )


def stops_of(stop: Sequence[str]) -> tuple[str, ...]:
    """The stop strings, each once; empty ones are dropped."""
    return tuple(dict.fromkeys(text for text in stop if text))


def _generation(turn: Turn, served: Served, prompt: RenderedPrompt, reply: ReplyFormat) -> GenerationRequest:
    return GenerationRequest(
        id=turn.id,
        slot=SlotKey.for_session(turn.tenant, turn.session),
        prompt=prompt,
        max_tokens=served.room_for(len(prompt.ids), turn.max_tokens),
        sampling=sampling_params(turn.sampling, served.sampling, vocab_size=served.info.vocab_size),
        reply=reply,
        n_replies=turn.n,
        top_logprobs=turn.top_logprobs,
        tells_prefill=turn.tells_prefill,
        prediction=_prediction(turn, served),
    )


def _prediction(turn: Turn, served: Served) -> TokenIds | None:
    """The ids of the predicted text, cut where no reply can reach."""
    n_chars = served.info.context_length * _CHARS_PER_TOKEN
    return served.tokens.encode(turn.prediction[:n_chars]) if turn.prediction else None


def _check_kwargs(turn: Turn) -> None:
    overridden = [name for name in RESERVED_KWARGS if name in turn.chat_template_kwargs]
    if overridden:
        raise InputError(
            f"'chat_template_kwargs' may not set '{overridden[0]}'.",
            param=f"chat_template_kwargs.{overridden[0]}",
        )


def _check_prefill(turn: Turn, conversation: Conversation) -> None:
    """Refuse a schema for a reply that continues text of the client, which no grammar has checked."""
    begun = str(turn.messages[-1].get("content") or "") if conversation.continues else ""
    if turn.response_format is not None and begun.strip():
        where = f"messages[{len(turn.messages) - 1}]"
        raise InputError(
            f"'response_format' cannot be kept by a reply that goes on from {where}.", param=where
        )


def _check_length(turn: Turn, use: ToolUse) -> None:
    """Refuse a minimum length for a reply with a grammar, which ends where its grammar does."""
    for name, value in (("min_tokens", turn.min_tokens), ("ignore_eos", turn.ignore_eos)):
        if value and has_form(turn, use):
            raise InputError(f"'{name}' makes no sense for a reply of a given form.", param=name)
    if turn.max_tokens is not None and turn.min_tokens > turn.max_tokens:
        raise InputError("'min_tokens' is more than the reply may have.", param="min_tokens")


def _kwargs_of(turn: Turn) -> dict[str, object]:
    """The template variables that the client sets itself; None means unset."""
    return {name: value for name, value in turn.chat_template_kwargs.items() if value is not None}


def _continues(turn: Turn) -> bool:
    """Whether the reply continues the last message, which then must be the assistant's."""
    if not turn.messages:
        return False  # rendering says that there must be one
    last = turn.messages[-1]
    where = f"messages[{len(turn.messages) - 1}]"
    if last.get("role") != "assistant":
        if turn.continues:
            raise InputError("Only an assistant message can be continued.", param=where)
        return False
    if turn.continues is False:
        raise InputError(
            "The last message is the assistant's and is not to be continued: there is nothing to answer.",
            param=where,
        )
    if last.get("tool_calls"):
        raise InputError("The last message calls tools; send their results.", param=where)
    return True


_CHARS_PER_TOKEN = 8
"""More than a token has on average."""
