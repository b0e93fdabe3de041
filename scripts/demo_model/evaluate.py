"""Asks a running server the held-out questions, greedily, and prints the share of exactly right answers as a
table.

    crossturn serve --port 8000 &
    python evaluate.py --url http://127.0.0.1:8000/v1 -n 40

Right means: every round's tool calls are the expected ones, names and arguments, and the last answer is the
expected text. The thought is not compared. Names, words, numbers, tool names and wordings are none that
training saw."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from conversation import Call, Message
from mixture import HELD_OUT, Conversation, held_out


@dataclass(frozen=True)
class Outcome:
    skill: str
    thinking: bool
    right: bool
    note: str


class Client:
    def __init__(self, url: str, model: str) -> None:
        self.http, self.url, self.model = httpx.Client(timeout=600), url.rstrip("/"), model

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], thinking: bool) -> Message:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": 500,
            "enable_thinking": thinking,
        }
        if tools:
            body["tools"] = list(tools)
        response = self.http.post(f"{self.url}/chat/completions", json=body)
        response.raise_for_status()
        message: Message = response.json()["choices"][0]["message"]
        return message


def calls_of(message: Message) -> list[Call]:
    calls = []
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            arguments = {"": call["function"]["arguments"]}
        calls.append(Call(call["function"]["name"], arguments))
    return calls


def ask(client: Client, conversation: Conversation, skill: str) -> Outcome:
    """The last turn of the conversation, its tool loop included, against what the generator says."""
    last = max(i for i, m in enumerate(conversation.messages) if m["role"] == "user")
    messages = [
        {key: value for key, value in message.items() if key != "reasoning_content"}
        for message in conversation.messages[: last + 1]
    ]
    for message in messages:
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"call_{number}"
            call["function"] = {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}
    for round_ in conversation.last.rounds:
        reply = client.reply(messages, conversation.tools, conversation.thinking)
        said = calls_of(reply)
        if said != list(round_.calls):
            return Outcome(
                skill, conversation.thinking, False, f"{list(round_.calls)} but {said or reply['content']}"
            )
        messages.append({key: value for key, value in reply.items() if value is not None})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, result in zip(reply["tool_calls"], round_.results, strict=True)
        ]
    reply = client.reply(messages, conversation.tools, conversation.thinking)
    content = (reply["content"] or "").strip()
    right = content == conversation.last.answer and not reply.get("tool_calls")
    said = f"{content!r} {calls_of(reply) or ''}"
    note = f"{conversation.last.user[-120:]!r}: {conversation.last.answer!r} but {said}"
    return Outcome(skill, conversation.thinking, right, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="demo")
    parser.add_argument("-n", type=int, default=40, help="questions a skill and mode")
    parser.add_argument("--only", default="", help="skills that start so")
    parser.add_argument("--wrong", action="store_true", help="print what went wrong")
    args = parser.parse_args()
    client = Client(args.url, args.model)
    print("| Skill | not thinking | thinking |\n|---|---|---|", flush=True)
    for skill in sorted(s for s in HELD_OUT if s.startswith(args.only)):
        jobs = [(seed, thinking) for thinking in (False, True) for seed in range(args.n)]
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(lambda job, s=skill: ask(client, held_out(s, *job), s), jobs))
        shares = [100 * sum(o.right for o in outcomes if o.thinking == t) / args.n for t in (False, True)]
        print(f"| {skill} | {shares[0]:.0f}% | {shares[1]:.0f}% |", flush=True)
        if args.wrong:
            for outcome in outcomes:
                if not outcome.right:
                    print("   ", "thinking" if outcome.thinking else "plain", outcome.note)


if __name__ == "__main__":
    main()
