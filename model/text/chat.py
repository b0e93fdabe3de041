"""Turns a conversation into the token ids of its prompt, by the checkpoint's own template.

Control tokens come from the template alone: what people typed is guarded while it renders
(``model/text/conversation.py``) and then encoded as text. So the positions where messages begin are known
from rendering, and no message can open another one.

A turn later the template writes part of the history anew: it drops thoughts, and writes the assistant's
head in another way. The points up to which nothing changes are found by rendering what may come next
and comparing ids. Exactly so, that costs a render of the whole conversation for each possibility; for
the family's templates the end of the conversation tells as much (:func:`tail_of`), because nothing
before the last question depends on what follows it. Whether that holds is tried out on a few
conversations when a format is loaded, and checked against the prompt's own blocks every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError, InputError
from model.text.blocks import BlockEncoder, Blocks, joined, n_common
from model.text.conversation import OPENER, Conversation, prepare
from model.text.messages import END_THINK, THINK, Message, is_question
from model.text.template import ChatTemplate, TemplateRefusedError
from model.text.tokenizer import TextTokenizer

MEMO_BUDGET_BYTES = 128 * 1024 * 1024
"""About a hundred conversations of 110,000 tokens."""
N_GROUPS_KEPT = 2
"""Assistant messages, with their results, kept at either end of a long tool loop."""
Render = Callable[[Sequence[Message]], Blocks]
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
        return self._encoder.encode(text, conversation.guard, max_tokens)

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


def next_turns(*, tools: bool, content: str = "") -> Iterator[list[Message]]:
    """What may come next, with placeholder texts: a reply and a question, and with ``tools`` a call and
    its result; each with the thought sent back and without. The reply's content begins with ``content``."""
    call = {"type": "function", "function": {"name": "a", "arguments": {}}}
    for thought in ({}, {"reasoning_content": "a"}):
        reply: Message = {"role": "assistant", "content": f"{content}a", **thought}
        yield [reply, {"role": "user", "content": "a"}]
        if tools:
            yield [reply | {"tool_calls": [call]}, {"role": "tool", "content": "a"}]


def shared_points(
    prompt: Blocks, history: Sequence[Message], turns: Sequence[Sequence[Message]], render: Render
) -> tuple[int, ...]:
    """The exact points, ascending, each greater than 0 and less than the prompt's length.

    Args:
        prompt: the prompt's blocks.
        history: the messages before the turns.
        turns: what may come next.
        render: renders messages with the head of a next reply.
    """
    return _inside(prompt, (_point(prompt, render([*history, *turn])) for turn in turns))


def shared_points_from_tail(
    prompt: Blocks, history: Sequence[Message], turns: Sequence[Sequence[Message]], render: Render
) -> tuple[int, ...] | None:
    """The same from the end of the conversation alone; None where the prompt does not bear it out."""
    tail = tail_of(history)
    short = render(tail)
    starts = list(accumulate((len(ids) for _, ids in prompt), initial=0))
    points: list[int] = []
    for turn in turns:
        following = render([*tail, *turn])
        index = _first_difference(short, following)
        place = _place_in(prompt, short, index)
        if place is None:
            return None
        points.append(starts[place] + _n_common_at(short, following, index))
    return _inside(prompt, points)


def tail_of(messages: Sequence[Message]) -> list[Message]:
    """The messages from the last question on. Of a long tool loop behind it only both ends."""
    last = max((i for i, m in enumerate(messages) if is_question(m)), default=0)
    tail = list(messages[last:])
    replies = [i for i, m in enumerate(tail) if m["role"] == "assistant"]
    if len(replies) <= 2 * N_GROUPS_KEPT:
        return tail
    return tail[: replies[N_GROUPS_KEPT]] + tail[replies[-N_GROUPS_KEPT] :]


def _inside(prompt: Blocks, points: Sequence[int] | Iterator[int]) -> tuple[int, ...]:
    n = sum(len(ids) for _, ids in prompt)
    return tuple(sorted({point for point in points if 0 < point < n}))


def _point(prompt: Blocks, following: Blocks) -> int:
    index = _first_difference(prompt, following)
    return sum(len(ids) for _, ids in prompt[:index]) + _n_common_at(prompt, following, index)


def _first_difference(one: Blocks, other: Blocks) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a[0] != b[0]), min(len(one), len(other)))


def _n_common_at(one: Blocks, other: Blocks, index: int) -> int:
    within = index < min(len(one), len(other))
    return n_common(one[index][1], other[index][1]) if within else 0


def _place_in(prompt: Blocks, short: Blocks, index: int) -> int | None:
    """The block of the prompt that block ``index`` of the short render is: counted from the last question
    on, where what lies between is the same, else from the end. In this order, because the calls of a
    loop may all read alike."""
    if index >= len(short):
        return None
    texts, short_texts = [text for text, _ in prompt], [text for text, _ in short]
    first = next((i for i, text in enumerate(short_texts) if i and not _is_system(text)), len(short))
    if first <= index and short_texts[first] in texts:
        question = len(texts) - 1 - texts[::-1].index(short_texts[first])
        place = question + index - first
        if texts[question : place + 1] == short_texts[first : index + 1]:
            return place
    from_end = len(texts) - len(short_texts) + index
    return from_end if from_end >= 0 and texts[from_end:] == short_texts[index:] else None


def _is_system(block: str) -> bool:
    return "system\n" in block[: block.find("\n") + 1]
