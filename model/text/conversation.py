"""A request's messages made ready for the template, and rendered to text that is still guarded.

The guard keeps what people typed from being read as control tokens. Before rendering, every character in
typed text that could begin a control token (``<`` in Qwen's vocabulary) is swapped for a character that
occurs nowhere in the request. The template moves the text about without knowing; whatever control string
stands in the rendered text was then written by the template itself. Between control strings the characters
are swapped back. Guarding the first character, not whole control strings, also holds where typed pieces meet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from model.errors import InputError
from model.text.messages import LATE_SYSTEM, THINK, Message, is_question, normalise
from model.text.template import ChatTemplate, TemplateRefusedError
from model.text.tokenizer import well_formed

OPENER = "<|im_start|>"
STAND_INS = "".join(map(chr, (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xE400))))
"""Unicode's noncharacters, which no text should hold, then some for private use, which icons use."""


class GuardClashError(Exception):
    """Typed text already holds the guard's character: take another guard. Stays behind ``ChatFormat``."""


class Guard:
    """One choice of stand-ins.

    Attributes:
        guarded: the characters that begin control tokens.
        stand_ins: what replaces each of them, position by position.
        mark: one more character that nothing typed holds.
        attempt: 0 for the guard that all requests share but those whose text holds its characters.
    """

    def __init__(self, control_texts: Iterable[str], attempt: int = 0) -> None:
        assert attempt < n_attempts(control_texts)
        self.attempt = attempt
        self.guarded = _firsts(control_texts)
        chosen = STAND_INS[attempt * (len(self.guarded) + 1) :][: len(self.guarded) + 1]
        self.stand_ins, self.mark = chosen[:-1], chosen[-1]
        self._restoring = str.maketrans(self.stand_ins, self.guarded)

    def text(self, typed: str) -> str:
        """``typed`` with its dangerous characters swapped and lone surrogates (a JSON escape can make
        them, UTF-8 cannot) replaced by U+FFFD.

        Raises:
            GuardClashError: ``typed`` holds one of the stand-ins.
        """
        if not typed.isascii():
            if self.mark in typed or any(char in typed for char in self.stand_ins):
                raise GuardClashError
            typed = well_formed(typed)
        for char, stand_in in zip(self.guarded, self.stand_ins, strict=True):
            typed = typed.replace(char, stand_in)
        return typed

    def value(self, typed: object) -> object:
        """``typed`` with every string in it guarded, keys included; other values are kept as they are."""
        if isinstance(typed, str):
            return self.text(typed)
        if isinstance(typed, Mapping):
            return {self.text(str(key)): self.value(value) for key, value in typed.items()}
        if isinstance(typed, Sequence):
            return [self.value(item) for item in typed]
        return typed

    def restore(self, guarded: str) -> str:
        """What was typed."""
        return guarded.translate(self._restoring)


def n_attempts(control_texts: Iterable[str]) -> int:
    """How many guards there are to choose from."""
    return len(STAND_INS) // (len(_firsts(control_texts)) + 1)


def _firsts(control_texts: Iterable[str]) -> str:
    """The characters that may begin a control token. Space is left to the templates, which trim it."""
    return "".join(sorted({text[0] for text in control_texts if text and not text[0].isspace()}))


class Conversation:
    """One request's conversation.

    Args:
        template: what renders it.
        guard: keeps typed text apart from the template's control strings.
        normal: messages of :func:`model.text.messages.normalise`.
        n_merged: how many messages of the request the first of them stands for, less one.

    Attributes:
        messages: guarded; system messages that stand behind others are placeholders.
        tools: guarded, None where there are none.
    """

    def __init__(
        self,
        template: ChatTemplate,
        guard: Guard,
        normal: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, object],
        n_merged: int,
    ) -> None:
        self.guard = guard
        self.messages = [_guarded(message, index, guard) for index, message in enumerate(normal)]
        self.tools = [guard.value(tool) for tool in tools] if tools else None
        self._kwargs = {name: guard.value(value) for name, value in kwargs.items()}
        self._template = template
        self._n_merged = n_merged
        self._late_systems = {
            str(index): guard.text(message["content"]).strip()
            for index, message in enumerate(normal)
            if message["role"] == LATE_SYSTEM
        }
        self._placeholder = re.compile(f"{re.escape(_late_head(guard))}([0-9]+){guard.mark}</tool_response>")
        self._unplaced = re.compile(f"{guard.mark}([0-9]+){guard.mark}")

    def text(self, messages: Sequence[Message] | None = None, *, generate: bool = True) -> str:
        """The conversation, or ``messages`` in its place, as the template writes it; still guarded.

        Args:
            generate: end with the head of the assistant's next message.

        Raises:
            InputError: the template refuses, or does not take a system message where one stands.
        """
        messages = self.messages if messages is None else messages
        try:
            return self.try_text(messages, generate=generate)
        except TemplateRefusedError as error:
            raise self._refusal(messages, str(error)) from error

    def try_text(self, messages: Sequence[Message], *, generate: bool = True, with_tools: bool = True) -> str:
        """The same for messages that nobody sent; ``with_tools`` tells the template of the tools.

        Raises:
            TemplateRefusedError: the template refuses them.
            InputError: it does not take a system message where one stands.
        """
        text = self._render(messages, generate, with_tools)
        return self._with_late_systems(text) if self._late_systems else text

    def where(self, index: int) -> str:
        """The name of the request's message that ``messages[index]`` came from."""
        index = index if index >= 0 else len(self.messages) + index
        return f"messages[{index + self._n_merged if index else 0}]"

    def mark_end(self) -> None:
        """Put the guard's mark where the last message is to be continued: at the end of its content, or
        of its thought when that is still open.

        Raises:
            InputError: it is no assistant message, or one with calls.
        """
        last, where = self.messages[-1], self.where(-1)
        if last["role"] != "assistant":
            raise InputError(f"{where} must be an assistant message to be continued", param=where)
        if "tool_calls" in last:
            raise InputError(f"{where}: a message with tool calls cannot be continued", param=where)
        opener = self.guard.text(THINK)
        if last["content"].lstrip().startswith(opener) and "reasoning_content" not in last:
            last["reasoning_content"] = last["content"].lstrip().removeprefix(opener).lstrip()
            last["content"], field = "", "reasoning_content"
        elif last["content"] or not last.get("reasoning_content") or last.get("is_closed"):
            field = "content"
        else:
            field = "reasoning_content"
        last[field] = last.get(field, "") + self.guard.mark

    def _render(self, messages: Sequence[Message], generate: bool, with_tools: bool = True) -> str:
        def render(messages: Sequence[Message]) -> str:
            return self._template.render(
                messages,
                tools=self.tools if with_tools else None,
                kwargs=self._kwargs,
                add_generation_prompt=generate,
            )

        try:
            return render(messages)
        except TemplateRefusedError:
            if any(is_question(message) for message in messages):
                raise
            # Templates refuse a conversation in which nobody asks anything; OpenAI's API does not.
            stand_in = f"{self.guard.mark}-{self.guard.mark}"
            n_system = int(bool(messages) and messages[0]["role"] == "system")
            asked = [*messages[:n_system], {"role": "user", "content": stand_in}, *messages[n_system:]]
            before, found, behind = render(asked).partition(f"{_USER_HEAD}{stand_in}<|im_end|>\n")
            if not found:
                raise
            return before + behind

    def _with_late_systems(self, text: str) -> str:
        """Put the system messages in the places that their placeholders hold."""
        text = self._placeholder.sub(lambda m: f"{OPENER}system\n{self._late_systems[m[1]]}", text)
        unplaced = self._unplaced.search(text)
        if unplaced:
            where = self.where(int(unplaced[1]))
            raise InputError(f"the chat template takes no system message at {where}", param=where)
        return text

    def _refusal(self, messages: Sequence[Message], reason: str) -> InputError:
        """What the template refused, naming the message with which a conversation it takes becomes one
        that it does not, found by bisection."""
        first_user = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
        if first_user is None:
            return InputError(f"the chat template refuses the messages: {reason}", param="messages")
        good, bad = first_user, len(messages)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._render(messages[:middle], True)
                good = middle
            except TemplateRefusedError:
                bad = middle
        where = self.where(bad - 1)
        return InputError(f"the chat template refuses {where}: {reason}", param=where)


def prepare(
    template: ChatTemplate,
    control_texts: Iterable[str],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, object],
) -> Conversation:
    """Normalise and guard a request.

    Raises:
        InputError: naming the message that cannot be taken.
    """
    normal = normalise(messages)
    control_texts = tuple(control_texts)
    for attempt in range(n_attempts(control_texts)):
        guard = Guard(control_texts, attempt)
        try:
            return Conversation(template, guard, normal, tools, kwargs, len(messages) - len(normal))
        except GuardClashError:
            continue
        except RecursionError as error:
            raise InputError("the request is nested too deeply", param="messages") from error
    raise InputError("messages hold every character that could stand in for another", param="messages")


def _guarded(message: Message, index: int, guard: Guard) -> Message:
    if message["role"] == LATE_SYSTEM:
        # Templates refuse a system message here. A message that looks like a tool's result is rendered in
        # place and is no question either (thoughts stay as they are); its head is rewritten afterwards.
        content = f"{_late_head(guard).removeprefix(_USER_HEAD)}{index}{guard.mark}</tool_response>"
        return {"role": "user", "content": content}
    guarded: Message = {"role": message["role"], "content": guard.text(message["content"])}
    if "reasoning_content" in message:
        guarded["reasoning_content"] = guard.text(message["reasoning_content"])
    if message.get("is_closed"):
        guarded["is_closed"] = True
    if "tool_calls" in message:
        guarded["tool_calls"] = guard.value(message["tool_calls"])
    return guarded


_USER_HEAD = f"{OPENER}user\n"


def _late_head(guard: Guard) -> str:
    return f"{_USER_HEAD}<tool_response>{guard.mark}"
