"""Turns a conversation into the token ids of its prompt, by the checkpoint's own template.

Control tokens come from the template alone: what people typed is guarded while it renders
(``model/text/guard.py``) and then encoded as text. So the positions where messages begin are known from
rendering, and no message can open another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError, InputError, PromptTooLongError
from model.text.blocks import BlockEncoder, TooLongError, blocks_of, joined, n_common
from model.text.conversation import OPENER, Conversation, prepare
from model.text.messages import END_THINK, THINK, Message
from model.text.nextturns import Blocks, Render, next_turns, shared_points, shared_points_from_tail
from model.text.template import ChatTemplate, TemplateRefusedError
from model.text.tokenizer import TextTokenizer

MEMO_BUDGET_BYTES = 128 * 1024 * 1024
"""About a hundred conversations of 110,000 tokens."""
PATIENCE = 4
"""How many times the context a prompt is read to tell its length; beyond that it is only said to be long."""
TRIAL_MESSAGES: dict[str, Message] = {
    "system": {"role": "system", "content": "s"},
    "user": {"role": "user", "content": "u"},
    "assistant": {"role": "assistant", "content": "c", "reasoning_content": "t"},
    "call": {
        "role": "assistant",
        "reasoning_content": "t",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"k": 1}}}],
    },
    "tool": {"role": "tool", "content": "r"},
}
TRIAL_TOOLS: list[Message] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
TRIALS = (
    ("user", "assistant", "user"),
    ("user", "call", "tool", "call", "tool"),
    ("system", "user", "call", "tool", "assistant", "user", "call", "tool"),
    ("user", *("call", "tool") * 6),
)
"""Conversations on which a template shows whether its points may be found from the tail."""


@dataclass(frozen=True, slots=True, eq=False)
class RenderedPrompt:
    """A conversation as the model reads it, and where its parts begin.

    Attributes:
        ids: token ids, uint32 [n].
        message_starts: positions of the control token that opens each message, ascending; known
            from rendering, never from what a user typed.
        message_roles: the role in each of those openings.
        shared_points: ascending positions < n up to which the prompts of next turns share ``ids``.
        opens_thought: the prompt's tail leaves a thought open, so the reply begins inside it.
        begins_content: the prompt's tail has closed the thought or begun the content, so the reply goes on
            with content at once.
        system_end: end of the system and tools block, 0 where there is none.
    """

    ids: NDArray[np.uint32]
    message_starts: tuple[int, ...] = ()
    message_roles: tuple[str, ...] = ()
    shared_points: tuple[int, ...] = ()
    opens_thought: bool = False
    begins_content: bool = False
    system_end: int = 0


class ChatFormat:
    """A checkpoint's chat format. Used by one thread: it remembers what it has encoded.

    Raises:
        CheckpointError: the checkpoint has no chat template, or one that does not compile.
    """

    def __init__(self, tokenizer: TextTokenizer, memo_budget_bytes: int = MEMO_BUDGET_BYTES) -> None:
        if tokenizer.chat_template is None:
            raise CheckpointError("the checkpoint has no chat template")
        self._tokenizer = tokenizer
        self._controls = tuple(tokenizer.controls)
        self._template = ChatTemplate(tokenizer.chat_template, tokenizer.named_tokens)
        self._encoder = BlockEncoder(tokenizer, memo_budget_bytes)
        self._tail_tells = all(self._tail_tells_in(roles) for roles in TRIALS)

    @property
    def variables(self) -> frozenset[str]:
        """The template's own switches, such as ``enable_thinking``."""
        return self._template.variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        continue_final: bool = False,
        note: str | None = None,
        max_tokens: int | None = None,
    ) -> RenderedPrompt:
        """The prompt for the assistant's next message, or, with ``continue_final``, for the rest of the
        last one.

        Args:
            messages: OpenAI's form, see ``model/text/messages.py`` for what is taken.
            tools: definitions, written into the prompt as they are.
            template_kwargs: the template's switches.
            note: a system message behind the last one, which no later prompt of the conversation will have;
                left out where the template has no place for it, or a message is continued.
            max_tokens: the context; a longer prompt is refused, one far longer before all of it is read.

        Raises:
            InputError: naming the message or the switch that cannot be rendered; with the code
                ``context_length_exceeded`` for a prompt that is too long.
        """
        conversation = self._prepare(messages, tools, template_kwargs)
        if continue_final:
            return self._render_final(conversation, max_tokens)
        noted = self._noted_text(conversation, messages, note, tools, template_kwargs)
        blocks = self._blocks(conversation, noted or conversation.text(), max_tokens)
        # The end of the conversation without the note is not the prompt's.
        return _prompt(blocks, self._shared_points(conversation, blocks, is_plain=noted is None))

    def _noted_text(
        self,
        conversation: Conversation,
        messages: Sequence[Mapping[str, Any]],
        note: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, object] | None,
    ) -> str | None:
        """The text of ``conversation`` with ``note`` behind its ``messages``; None where that cannot be."""
        if note is None:
            return None
        try:
            noted = self._prepare([*messages, {"role": "system", "content": note}], tools, kwargs)
            return noted.text() if noted.guard.attempt == conversation.guard.attempt else None
        except InputError:
            return None  # the template takes no system message there

    def known_next(
        self,
        messages: Sequence[Mapping[str, Any]],
        reply: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> NDArray[np.uint32]:
        """The ids [n] that the next prompt will begin with whatever comes next: the common ids of two
        renders that differ in what the user (or, after calls in ``reply``, the tool) says.

        Raises:
            InputError: the conversation cannot be rendered.
        """
        conversation = self._prepare([*messages, reply], tools, template_kwargs)
        history = conversation.messages
        role = "tool" if history[-1].get("tool_calls") else "user"
        one, other = (
            joined([ids for _, ids in self._blocks(conversation, conversation.text([*history, following]))])
            for following in ({"role": role, "content": content} for content in ("a", "0"))
        )
        return one[: n_common(one, other)]

    def _prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, object] | None,
    ) -> Conversation:
        for name in kwargs or {}:
            if name in self._template.reserved:
                where = f"chat_template_kwargs.{name}"
                raise InputError(f"'{where}' may not be set", param=where)
        return prepare(self._template, self._controls, messages, tools, kwargs or {})

    def _blocks(self, conversation: Conversation, text: str, max_tokens: int | None = None) -> Blocks:
        if max_tokens is not None and len(text) > max_tokens:
            n_tokens = self._tokenizer.min_tokens(text)
            if n_tokens > max_tokens:
                raise PromptTooLongError(n_tokens, max_tokens, is_exact=False)
        texts = blocks_of(text)
        try:
            limit = None if max_tokens is None else PATIENCE * max_tokens
            ids = self._encoder.encode(texts, conversation.guard, limit)
        except TooLongError as error:
            assert max_tokens is not None
            raise PromptTooLongError(error.n_tokens, max_tokens, is_exact=False) from error
        n_tokens = sum(map(len, ids))
        if max_tokens is not None and n_tokens > max_tokens:
            raise PromptTooLongError(n_tokens, max_tokens)
        return list(zip(texts, ids, strict=True))

    def _render_final(self, conversation: Conversation, max_tokens: int | None) -> RenderedPrompt:
        """The prompt that breaks off inside the last message."""
        conversation.mark_end()
        mark, last = conversation.guard.mark, conversation.messages[-1]
        text, found, _ = conversation.text(generate=False).partition(mark)
        if not found:
            where = conversation.where(-1)
            raise InputError(f"the chat template cannot continue {where}", param=where)
        blocks = self._blocks(conversation, text, max_tokens)
        turns = list(next_turns(tools=bool(conversation.tools), content=last["content"].replace(mark, "")))
        try:
            render = self._renderer(conversation)
            points = shared_points(blocks, conversation.messages[:-1], turns, render)
        except TemplateRefusedError:
            points = ()
        return _prompt(blocks, points)

    def _shared_points(
        self, conversation: Conversation, blocks: Blocks, *, is_plain: bool
    ) -> tuple[int, ...]:
        try:
            points = self._points_from_tail(conversation, blocks) if self._tail_tells and is_plain else None
            return self._exact_points(conversation, blocks) if points is None else points
        except TemplateRefusedError:
            return ()  # the template takes this conversation but none of those that may come of it

    def _points_from_tail(self, conversation: Conversation, blocks: Blocks) -> tuple[int, ...] | None:
        turns = list(next_turns(tools=bool(conversation.tools)))
        render = self._renderer(conversation, with_tools=False)
        return shared_points_from_tail(blocks, conversation.messages, turns, render)

    def _exact_points(self, conversation: Conversation, blocks: Blocks) -> tuple[int, ...]:
        turns = list(next_turns(tools=bool(conversation.tools)))
        return shared_points(blocks, conversation.messages, turns, self._renderer(conversation))

    def _renderer(self, conversation: Conversation, *, with_tools: bool = True) -> Render:
        return lambda messages: self._blocks(
            conversation, conversation.try_text(messages, with_tools=with_tools)
        )

    def _tail_tells_in(self, roles: Sequence[str]) -> bool:
        """Whether the end of a conversation of these ``roles`` gives the points of all of it."""
        try:
            conversation = self._prepare([TRIAL_MESSAGES[role] for role in roles], TRIAL_TOOLS, None)
            blocks = self._blocks(conversation, conversation.text())
            return self._points_from_tail(conversation, blocks) == self._exact_points(conversation, blocks)
        except (InputError, TemplateRefusedError):
            return False


def _prompt(blocks: Blocks, points: tuple[int, ...]) -> RenderedPrompt:
    before, *messages = blocks
    ends = list(accumulate((len(ids) for _, ids in messages), initial=len(before[1])))
    starts, n = tuple(ends[:-1]), ends[-1]
    roles = tuple(text.removeprefix(OPENER).partition("\n")[0] for text, _ in messages)
    tail = blocks[-1][0]
    opens_thought = tail.rfind(THINK) > tail.rfind(END_THINK)
    has_system = bool(roles) and roles[0] == "system"
    return RenderedPrompt(
        ids=joined([ids for _, ids in blocks]),
        message_starts=starts,
        message_roles=roles,
        shared_points=points,
        opens_thought=opens_thought,
        begins_content=not opens_thought and bool(tail.partition("\n")[2].strip()),
        system_end=(*starts, n)[1] if has_system else 0,
    )
