"""Turns a conversation into the token ids of its prompt, by the checkpoint's own template.

Control tokens come from the template alone: what people typed is guarded while it renders
(``model/guard.py``) and then encoded as text. So the positions where messages begin are known from
rendering, and no message can open another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError, InputError
from model.guard import Guard, GuardClashError
from model.messages import LATE_SYSTEM, Message, normalise
from model.template import RESERVED, ChatTemplate, TemplateRefusedError
from model.tokenizer import TextTokenizer

OPENER = "<|im_start|>"
HARMLESS_KWARGS = frozenset({"enable_thinking", "preserve_thinking"})
"""Switches that a template without the feature may be told, because nothing then differs from the wish
or the checkpoint has no other way."""


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
        system_end: end of the system and tools block, 0 where there is none.
    """

    ids: NDArray[np.uint32]
    message_starts: tuple[int, ...] = ()
    message_roles: tuple[str, ...] = ()
    shared_points: tuple[int, ...] = ()
    opens_thought: bool = False
    system_end: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Conversation:
    """A request made ready for the template: guarded, with its guard.

    Attributes:
        late_systems: the text of system messages that stand behind others, by their marker's number.
        n_merged: how many messages of the request the first one stands for, less one.
    """

    guard: Guard
    messages: list[Message]
    tools: list[object] | None
    kwargs: dict[str, object]
    late_systems: dict[int, str]
    n_merged: int


class ChatFormat:
    """A checkpoint's chat format. Used by one thread: the tokenizer behind it remembers.

    Raises:
        CheckpointError: the checkpoint has no chat template, or one that does not compile.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        if tokenizer.chat_template is None:
            raise CheckpointError("the checkpoint has no chat template")
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer.chat_template, tokenizer.named_tokens)

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
    ) -> RenderedPrompt:
        """The prompt for the assistant's next message, or, with ``continue_final``, for the rest of the
        last one.

        Args:
            messages: OpenAI's form, see ``model/messages.py`` for what is taken.
            tools: definitions, written into the prompt as they are.
            template_kwargs: the template's switches.

        Raises:
            InputError: naming the message or the switch that cannot be rendered.
        """
        conversation = self._prepare(messages, tools, template_kwargs or {})
        if continue_final:
            _mark_end(conversation)
        text = self._text(conversation, conversation.messages, generate=not continue_final)
        if continue_final:
            text, found, _ = text.partition(conversation.guard.mark)
            if not found:
                raise InputError("the template cannot continue this message", param=_where(conversation, -1))
        return self._prompt(conversation, text, self._shared_points(conversation, continue_final))

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
        conversation = self._prepare([*messages, reply], tools, template_kwargs or {})
        role = "tool" if conversation.messages[-1].get("tool_calls") else "user"
        one, other = (
            self._ids(conversation, [*conversation.messages, {"role": role, "content": content}])
            for content in ("a", "0")
        )
        return one[: _n_common(one, other)]

    def _prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, object],
    ) -> _Conversation:
        self._check_kwargs(kwargs)
        normal = normalise(messages)
        for attempt in range(100):
            guard = Guard(self._tokenizer.controls, attempt)
            try:
                return _Conversation(
                    guard=guard,
                    messages=[_guarded(message, index, guard) for index, message in enumerate(normal)],
                    tools=[guard.value(tool) for tool in tools] if tools else None,
                    kwargs={name: guard.value(value) for name, value in kwargs.items()},
                    late_systems={
                        index: guard.text(message["content"]).strip()
                        for index, message in enumerate(normal)
                        if message["role"] == LATE_SYSTEM
                    },
                    n_merged=len(messages) - len(normal),
                )
            except GuardClashError:
                continue
            except RecursionError as error:
                raise InputError("the request is nested too deeply", param="messages") from error
        raise InputError("messages hold too many different private-use characters", param="messages")

    def _check_kwargs(self, kwargs: Mapping[str, object]) -> None:
        for name in kwargs:
            if name not in self.variables | HARMLESS_KWARGS or name in RESERVED:
                where = f"chat_template_kwargs.{name}"
                raise InputError(f"this model's chat template has no switch {name!r}", param=where)

    def _text(
        self, conversation: _Conversation, messages: Sequence[Message], *, generate: bool = True
    ) -> str:
        """Rendered text, still guarded."""
        try:
            text = self._render(conversation, messages, generate)
        except TemplateRefusedError as error:
            raise self._refusal(conversation, messages, str(error)) from error
        for index, content in conversation.late_systems.items():
            placeholder = f"{OPENER}user\n{_placeholder(index, conversation.guard)}"
            text = text.replace(placeholder, f"{OPENER}system\n{content}", 1)
        return text

    def _render(self, conversation: _Conversation, messages: Sequence[Message], generate: bool) -> str:
        return self._template.render(
            messages, tools=conversation.tools, kwargs=conversation.kwargs, add_generation_prompt=generate
        )

    def _refusal(self, conversation: _Conversation, messages: Sequence[Message], reason: str) -> InputError:
        """What the template refused, naming the message with which a conversation it takes becomes one
        that it does not, found by bisection."""
        first_user = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
        if first_user is None:
            return InputError(f"the chat template refuses the messages: {reason}", param="messages")
        good, bad = first_user, len(messages)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._render(conversation, messages[:middle], True)
                good = middle
            except TemplateRefusedError:
                bad = middle
        where = _where(conversation, bad - 1)
        return InputError(f"the chat template refuses {where}: {reason}", param=where)

    def _ids(self, conversation: _Conversation, messages: Sequence[Message]) -> NDArray[np.uint32]:
        return _joined(self._encode(conversation, self._text(conversation, messages))[1])

    def _encode(self, conversation: _Conversation, text: str) -> tuple[list[str], list[NDArray[np.uint32]]]:
        guard = conversation.guard
        segments = self._tokenizer.split(text)
        return segments, self._tokenizer.encode_segments(segments, guard.stand_ins, guard.guarded)

    def _prompt(
        self, conversation: _Conversation, text: str, nexts: list[NDArray[np.uint32]]
    ) -> RenderedPrompt:
        segments, parts = self._encode(conversation, text)
        ends = list(accumulate(len(part) for part in parts))
        openers = [index for index in range(1, len(segments), 2) if segments[index] == OPENER]
        starts = tuple(ends[index] - 1 for index in openers)
        roles = tuple(segments[index + 1].partition("\n")[0] for index in openers)
        ids = _joined(parts)
        has_system = bool(roles) and roles[0] == "system"
        tail = text[text.rfind(OPENER) :]
        points = {_n_common(ids, following) for following in nexts}
        return RenderedPrompt(
            ids=ids,
            message_starts=starts,
            message_roles=roles,
            shared_points=tuple(sorted(point for point in points if 0 < point < len(ids))),
            opens_thought=tail.rfind("<think>") > tail.rfind("</think>"),
            system_end=(starts[1] if len(starts) > 1 else len(ids)) if has_system else 0,
        )

    def _shared_points(self, conversation: _Conversation, continued: bool) -> list[NDArray[np.uint32]]:
        """The prompts of next turns: after a plain reply and a user message, and, with tools, after a
        call and its result; each with the thought sent back and without."""
        messages = conversation.messages
        history = messages[:-1] if continued else messages
        content = messages[-1]["content"].replace(conversation.guard.mark, "") if continued else ""
        turns: list[list[Message]] = []
        for thought in ({}, {"reasoning_content": "a"}):
            reply: Message = {"role": "assistant", "content": f"{content}a", **thought}
            turns.append([reply, {"role": "user", "content": "a"}])
            if conversation.tools:
                call = {"type": "function", "function": {"name": "a", "arguments": {}}}
                turns.append([reply | {"tool_calls": [call]}, {"role": "tool", "content": "a"}])
        return [self._ids(conversation, [*history, *turn]) for turn in turns]


def _guarded(message: Message, index: int, guard: Guard) -> Message:
    if message["role"] == LATE_SYSTEM:
        # Templates refuse a system message here. A message that looks like a tool's result is rendered in
        # place and is no question either (thoughts stay as they are); its head is rewritten afterwards.
        return {"role": "user", "content": _placeholder(index, guard)}
    guarded: Message = {"role": message["role"], "content": guard.text(message["content"])}
    if "reasoning_content" in message:
        guarded["reasoning_content"] = guard.text(message["reasoning_content"])
    if "tool_calls" in message:
        guarded["tool_calls"] = guard.value(message["tool_calls"])
    return guarded


def _placeholder(index: int, guard: Guard) -> str:
    return f"<tool_response>{guard.mark}{index}{guard.mark}</tool_response>"


def _mark_end(conversation: _Conversation) -> None:
    """Put the guard's mark where the last message is to be continued: at the end of its content, or of its
    thought when it has no content yet."""
    last = conversation.messages[-1]
    where = _where(conversation, -1)
    if last["role"] != "assistant":
        raise InputError(f"{where} must be an assistant message to be continued", param=where)
    if "tool_calls" in last:
        raise InputError(f"{where}: a message with tool calls cannot be continued", param=where)
    field = "content" if last["content"] or not last.get("reasoning_content") else "reasoning_content"
    last[field] = last.get(field, "") + conversation.guard.mark


def _where(conversation: _Conversation, index: int) -> str:
    index = index if index >= 0 else len(conversation.messages) + index
    return f"messages[{index + conversation.n_merged if index else 0}]"


def _joined(parts: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)


def _n_common(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    """How many ids the two begin with in common."""
    n = min(len(one), len(other))
    differs = np.flatnonzero(one[:n] != other[:n])
    return int(differs[0]) if len(differs) else n
