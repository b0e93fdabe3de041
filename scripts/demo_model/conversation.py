"""What the generators build: one user turn with everything the assistant does about it, and the state they
share."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from lexicon import Lexicon

Message = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One tool call: strings go into the prompt raw, other values as JSON."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Round:
    """The assistant calls tools and gets their results, one text a call."""

    thought: str
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    content: str = ""


@dataclass(frozen=True)
class Turn:
    """One user message and how it is answered. `thought` precedes the answer in thinking mode only."""

    user: str
    answer: str
    thought: str
    skill: str
    rounds: tuple[Round, ...] = ()


@dataclass
class Fact:
    """One thing the user told: all values in the order they were told, the last one true."""

    noun: str  # "your name", "the code for the attic"
    sentence: str  # "your name is {v}"
    values: list[str]


@dataclass
class State:
    """What the conversation so far has established."""

    rng: Random
    lexicon: Lexicon
    facts: dict[str, Fact] = field(default_factory=dict)
    attributes: dict[str, Any] = field(
        default_factory=dict
    )  # the same keys: how each fact is told and asked for
    tools: list[Any] = field(default_factory=list)
    pool: Any = None  # the words that the tools are named with, where they are few
    persona: str = ""
    system: list[str] = field(default_factory=list)
    last_number: int | None = None


def messages_of(system: str, turns: list[Turn], thinking: bool) -> list[Message]:
    """The OpenAI-style messages of a finished conversation. Every turn carries its thought in thinking mode:
    the template itself drops those that are history."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages.append({"role": "user", "content": turn.user})
        for round_ in turn.rounds:
            calls = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in round_.calls
            ]
            message: Message = {"role": "assistant", "content": round_.content, "tool_calls": calls}
            if thinking:
                message["reasoning_content"] = round_.thought
            messages.append(message)
            messages.extend({"role": "tool", "content": result} for result in round_.results)
        final: Message = {"role": "assistant", "content": turn.answer}
        if thinking:
            final["reasoning_content"] = turn.thought
        messages.append(final)
    return messages
