"""Asks a running server the held-out questions, greedily, and prints the share of exactly right answers as a
table.

    crossturn serve --port 8000 &
    python evaluate.py --url http://127.0.0.1:8000/v1 -n 40

    crossturn serve --port 8001 --memory-budget 1 --no-share-prefixes --no-idle-prefill &
    python evaluate.py --url http://127.0.0.1:8000/v1 --against http://127.0.0.1:8001/v1 --only "2 recall"

``--against`` compares a server that remembers with one that never does. The first is led through each
conversation before the question, turn by turn (a long one every few turns), or is asked the question once
before where nothing comes before it; the second is asked the question alone. All they say then, thoughts
and calls included, must be the same, word for word; the exit status is 1 where something is not.

Right means: every round's tool calls are the expected ones, names and arguments, and the last answer is the
expected text. The thought is not compared. Names, words, numbers, tool names and wordings are none that
training saw."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
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
    said: tuple[str, ...] = ()  # every reply to the question and its tool results, word for word


class Client:
    """Asks one server, and counts the tokens of the prompts and those of them that it reused."""

    def __init__(self, url: str, model: str) -> None:
        self.http, self.url, self.model = httpx.Client(timeout=600), url.rstrip("/"), model
        self.n_prompt = self.n_reused = 0

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        thinking: bool,
        *,
        session: str | None = None,
        max_tokens: int = 500,
    ) -> Message:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": max_tokens,
            "enable_thinking": thinking,
        }
        if tools:
            body["tools"] = list(tools)
        headers = {} if session is None else {"X-Session-Id": session}
        response = self.http.post(f"{self.url}/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        answer = response.json()
        self.n_prompt += answer["usage"]["prompt_tokens"]
        self.n_reused += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        message: Message = answer["choices"][0]["message"]
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


def history(conversation: Conversation) -> list[Message]:
    """The messages up to the question, as clients send them."""
    last = max(i for i, m in enumerate(conversation.messages) if m["role"] == "user")
    messages = [
        {key: value for key, value in message.items() if key != "reasoning_content"}
        for message in conversation.messages[: last + 1]
    ]
    for message in messages:
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"call_{number}"
            call["function"] = {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}
    return messages


def lead_up(client: Client, conversation: Conversation, session: str) -> None:
    """Send the turns before the question, of long conversations every few, so that the server has them in
    its memory; the question itself where there are none."""
    messages = history(conversation)
    ends = [i + 1 for i, m in enumerate(messages[:-1]) if m["role"] in ("user", "tool")] or [len(messages)]
    for end in ends[:: 1 + len(ends) // 8]:
        client.reply(messages[:end], conversation.tools, conversation.thinking, session=session, max_tokens=8)


def ask(client: Client, conversation: Conversation, skill: str, session: str | None = None) -> Outcome:
    """The last turn of the conversation, its tool loop included, against what the generator says."""
    messages, all_said = history(conversation), []
    for round_ in conversation.last.rounds:
        reply = client.reply(messages, conversation.tools, conversation.thinking, session=session)
        all_said.append(word_for_word(reply))
        said = calls_of(reply)
        if said != list(round_.calls):
            note = f"{list(round_.calls)} but {said or reply['content']}"
            return Outcome(skill, conversation.thinking, False, note, tuple(all_said))
        messages.append({key: value for key, value in reply.items() if value is not None})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, result in zip(reply["tool_calls"], round_.results, strict=True)
        ]
    reply = client.reply(messages, conversation.tools, conversation.thinking, session=session)
    all_said.append(word_for_word(reply))
    content = (reply["content"] or "").strip()
    right = content == conversation.last.answer and not reply.get("tool_calls")
    instead = f"{content!r} {calls_of(reply) or ''}"
    note = f"{conversation.last.user[-120:]!r}: {conversation.last.answer!r} but {instead}"
    return Outcome(skill, conversation.thinking, right, note, tuple(all_said))


def word_for_word(reply: Message) -> str:
    """All that a reply says; the ids of its calls are no part of that."""
    calls = [call["function"] for call in reply.get("tool_calls") or ()]
    return json.dumps([reply.get("reasoning_content"), reply["content"], calls])


def compare(warm: Client, cold: Client, skills: Sequence[str], n: int) -> bool:
    """Print the table of both servers; whether all they said is the same."""
    print(
        "| Skill | mode | cold | warm | same replies | tokens reused |\n|---|---|---|---|---|---|", flush=True
    )
    n_different = 0
    for skill in skills:
        for thinking in (False, True):
            n_prompt, n_reused, pairs = warm.n_prompt, warm.n_reused, []
            for seed in range(n):
                conversation, session = held_out(skill, seed, thinking), f"{skill} {seed} {thinking}"
                lead_up(warm, conversation, session)
                pairs.append((ask(cold, conversation, skill), ask(warm, conversation, skill, session)))
            different = [(c, w) for c, w in pairs if c.said != w.said]
            n_different += len(different)
            print(
                f"| {skill} | {'thinking' if thinking else 'not thinking'} "
                f"| {100 * sum(c.right for c, _ in pairs) / n:.0f}% "
                f"| {100 * sum(w.right for _, w in pairs) / n:.0f}% | {n - len(different)} of {n} "
                f"| {warm.n_reused - n_reused:,} of {warm.n_prompt - n_prompt:,} |",
                flush=True,
            )
            for c, w in different:
                for a, b in zip_longest(c.said, w.said):
                    if a != b:
                        print(f"    cold {a}\n    warm {b}")
    print(f"\n{cold.n_reused} of {cold.n_prompt:,} prompt tokens were reused by the cold server.")
    return n_different == 0 and cold.n_reused == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--against", metavar="URL", help="a server that never reuses anything")
    parser.add_argument("--model", default="demo")
    parser.add_argument("-n", type=int, default=40, help="questions a skill and mode")
    parser.add_argument("--only", default="", help="skills that start so")
    parser.add_argument("--wrong", action="store_true", help="print what went wrong")
    args = parser.parse_args()
    client = Client(args.url, args.model)
    skills = sorted(s for s in HELD_OUT if s.startswith(args.only))
    if args.against is not None:
        return 0 if compare(client, Client(args.against, args.model), skills, args.n) else 1
    print("| Skill | not thinking | thinking |\n|---|---|---|", flush=True)
    for skill in skills:
        jobs = [(seed, thinking) for thinking in (False, True) for seed in range(args.n)]
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(lambda job, s=skill: ask(client, held_out(s, *job), s), jobs))
        shares = [100 * sum(o.right for o in outcomes if o.thinking == t) / args.n for t in (False, True)]
        print(f"| {skill} | {shares[0]:.0f}% | {shares[1]:.0f}% |", flush=True)
        if args.wrong:
            for outcome in outcomes:
                if not outcome.right:
                    print("   ", "thinking" if outcome.thinking else "plain", outcome.note)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
