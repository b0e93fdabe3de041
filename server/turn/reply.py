"""The outcome of a request: its replies, put together from events for any dialect, the plan of its prompt,
and what is known of the next prompt once the reply is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from typing_extensions import TypedDict

from model.text.chat import RenderedPrompt
from model.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from model.text.messages import THINK
from server.events import Event, Finished, Planned, PlanReport, Progress, WarmRequest
from server.turn.compose import ComposedTurn
from server.turn.served import ChatRenderer

LEAST_AHEAD = 12
"""Tokens worth reading ahead. Fewer take the next turn no time, and are fed in vain if it parts before."""


@dataclass(slots=True)
class Call:
    """A tool call so far; ``fragments`` join to the JSON of its arguments."""

    id: str
    name: str
    fragments: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


@dataclass(slots=True)
class Reply:
    """One reply so far."""

    contents: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Append ``delta``."""
        match delta:
            case ContentDelta():
                self.contents.append(delta.text)
            case ReasoningDelta():
                self.thoughts.append(delta.text)
            case ToolCallStart():
                self.calls.append(Call(delta.id, delta.name))
            case ToolCallArguments():
                self.calls[delta.index].fragments.append(delta.json_fragment)

    @property
    def content(self) -> str:
        return "".join(self.contents)

    @property
    def thought(self) -> str:
        return "".join(self.thoughts)

    def message(self) -> dict[str, Any]:
        """The assistant's message, in the form of the next turn's ``messages``."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.thoughts:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return message


class Replies:
    """The ``n`` replies of a request, the plans of its prompts, and how the replies ended."""

    def __init__(self, n: int = 1) -> None:
        self._replies = [Reply() for _ in range(n)]
        self.plans: list[PlanReport] = []
        self.finished: dict[int, Finished] = {}
        self.n_tokens = [0] * n

    def __getitem__(self, index: int) -> Reply:
        return self._replies[index]

    def __len__(self) -> int:
        return len(self._replies)

    def take_in(self, event: Event) -> None:
        """Take note of ``event``."""
        match event:
            case Planned():
                self.plans.append(event.report)
            case Progress():
                self.n_tokens[event.index] = event.n_tokens
                for delta in event.deltas:
                    self._replies[event.index].add(delta)
            case Finished():
                self.finished[event.index] = event
                self.n_tokens[event.index] = event.n_tokens

    @property
    def ends(self) -> list[Finished]:
        """How the replies ended that have, in the order of the replies."""
        return [self.finished[index] for index in sorted(self.finished)]

    @property
    def is_complete(self) -> bool:
        """Whether every reply has ended."""
        return len(self.finished) == len(self._replies)

    @property
    def is_whole(self) -> bool:
        """Whether every reply has ended, and none because of its length."""
        return self.is_complete and all(end.reason != "length" for end in self.finished.values())


class PlanBody(TypedDict):
    """What was reused of a prompt, from where and why: the ``crossturn`` object of every dialect."""

    slot: str
    mode: Literal["ExactAppend", "ReplayFromCheckpoint", "FullRefill"]
    prompt_tokens: int
    shared_tokens: int
    reused_tokens: int
    read_ahead_tokens: int
    prefilled_tokens: int
    checkpoint: int | None
    reason: str
    parent: str | None


def plan_body(report: PlanReport) -> PlanBody:
    """``report`` as a client sees it: without ``divergence``, which is for the slot's owner only."""
    return PlanBody(
        slot=report.slot,
        mode=report.mode,
        prompt_tokens=report.prompt_tokens,
        shared_tokens=report.shared_tokens,
        reused_tokens=report.reused_tokens,
        read_ahead_tokens=report.read_ahead_tokens,
        prefilled_tokens=report.prefilled_tokens,
        checkpoint=report.checkpoint,
        reason=report.reason,
        parent=report.parent,
    )


def warm_request(asked: ComposedTurn, reply: Reply, renderer: ChatRenderer) -> WarmRequest:
    """A request to prefill what comes after ``reply``, whatever the user says next.

    Raises:
        InputError: the conversation with its reply cannot be rendered.
    """
    conversation = asked.conversation
    known = renderer.known_next(
        conversation.messages,
        as_sent_back(reply, conversation.messages),
        tools=conversation.tools,
        template_kwargs=conversation.template_kwargs,
    )
    return WarmRequest(
        id=f"{asked.generation.id}-next",
        slot=asked.generation.slot,
        prompt=RenderedPrompt(ids=known),
        least_tokens=LEAST_AHEAD,
    )


def as_sent_back(reply: Reply, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``reply`` as the client will probably send it back. A client that sent the assistant's last message
    without its thought will do so again."""
    message = reply.message()
    newest = next((one for one in reversed(messages) if one.get("role") == "assistant"), None)
    if newest is not None and not _has_thought(newest):
        message.pop("reasoning_content", None)
    return message


def _has_thought(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    is_tagged = isinstance(content, str) and content.lstrip().startswith(THINK)
    return bool(message.get("reasoning_content") or message.get("reasoning")) or is_tagged


def is_worth_it(asked: ComposedTurn) -> bool:
    """Whether the next prompt can be predicted: not with several replies, of which any may be chosen, and not
    if the reply continues a message, which then has two parts."""
    return asked.generation.n_replies == 1 and not asked.conversation.continues
