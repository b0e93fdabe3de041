"""What it costs to turn a long conversation into token ids once more, with one new message at its end.

    python -m bench.render [--model PATH] [--messages 200] [--tokens 110000]

Prints milliseconds from messages to ids, message starts and shared points: for a process that sees the
conversation for the first time, for the next turn, and for a next turn in which the time at the end
of the system prompt has changed. The conversations are a chat and a tool loop over one question.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

from model.checkpoint.hub import resolve
from model.text.chat import ChatFormat
from model.text.tokenizer import TextTokenizer

WORDS = [
    "the token",
    "a state",
    "if (x < y)",
    "return value",
    "checkpoint",
    "prefix",
    "and so",
    "one more",
    "the",
]
TOOL = {"type": "object", "properties": {"path": {"type": "string", "description": "where"}}}
TOOLS = [{"type": "function", "function": {"name": f"tool_{i}", "parameters": TOOL}} for i in range(20)]
N_TURNS = 9

Message = dict[str, Any]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=110_000)
    options = parser.parse_args()
    tokenizer = TextTokenizer.from_dir(resolve(options.model))
    print(f"{'shape':6} {'messages':>8} {'tokens':>8} {'first ms':>9} {'next ms':>8} {'clock ms':>9}")
    for name, shape in (("chat", _chat), ("loop", _loop)):
        _measure(name, shape, ChatFormat(tokenizer), tokenizer, options.messages, options.tokens)


def _measure(
    name: str,
    shape: Callable[[int, Callable[[float], str]], list[Message]],
    chat: ChatFormat,
    tokenizer: TextTokenizer,
    n_messages: int,
    n_tokens: int,
) -> None:
    rng = random.Random(1)

    def text(share: float) -> str:
        # Words of a known cost, a paragraph every sixty.
        n_each = len(tokenizer.encode_text(" ".join(WORDS))) / len(WORDS)
        words = [rng.choice(WORDS) for _ in range(int(n_tokens * share / n_each))]
        return "\n\nThen ".join(" ".join(words[i : i + 60]) for i in range(0, len(words), 60))

    history = shape(n_messages - 1, text)
    first, n = _milliseconds(chat, history)
    following, clock = [], []
    for turn in range(N_TURNS):
        new = {"role": "user", "content": f"And {turn}?"}
        following.append(_milliseconds(chat, [*history, new])[0])
        timed = {"role": "system", "content": f"{history[0]['content']}\n\nIt is 12:0{turn}."}
        clock.append(_milliseconds(chat, [timed, *history[1:], new])[0])
    figures = first, sorted(following)[N_TURNS // 2], sorted(clock)[N_TURNS // 2]
    print(f"{name:6} {n_messages:8} {n:8} {figures[0]:9.1f} {figures[1]:8.1f} {figures[2]:9.1f}")


def _milliseconds(chat: ChatFormat, messages: list[Message]) -> tuple[float, int]:
    # A request brings strings of its own: none of last time's may stand in for them.
    messages = [{**message, "content": "".join(message["content"])} for message in messages]
    start = time.perf_counter()
    prompt = chat.render(messages, tools=TOOLS)
    return (time.perf_counter() - start) * 1000, len(prompt.ids)


def _chat(n: int, text: Callable[[float], str]) -> list[Message]:
    """A system prompt of 7.5 %, then questions and answers that share the rest."""
    roles = ("user", "assistant")
    share = 0.925 / (n - 1)
    turns: list[Message] = [{"role": roles[i % 2], "content": text(share)} for i in range(n - 1)]
    return [{"role": "system", "content": text(0.075)}, *turns]


def _loop(n: int, text: Callable[[float], str]) -> list[Message]:
    """A system prompt, one question, then calls and results."""
    call = {"type": "function", "function": {"name": "tool_1", "arguments": '{"path": "a/b"}'}}
    share = 2 * 0.925 / (n - 2)
    loop: list[Message] = []
    while len(loop) < n - 2:
        loop.append({"role": "assistant", "content": "", "tool_calls": [call]})
        loop.append({"role": "tool", "content": text(share)})
    return [{"role": "system", "content": text(0.075)}, {"role": "user", "content": "Go."}, *loop]


if __name__ == "__main__":
    main()
