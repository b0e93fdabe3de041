"""How much of a conversation is read twice: conversation shapes against OpenAI-compatible servers.

    python bench/turns.py --tokenizer model/demo --url crossturn=http://127.0.0.1:8000
    python bench/turns.py --tokenizer model/demo --url crossturn=... --url mlx-lm=http://127.0.0.1:8080

A long run can be cut into pieces: ``--shape`` chooses shapes, ``--results FILE`` keeps what was measured and
the table shows all that the file holds. Start the server anew before a shape is run again: it remembers.

For every shape and server: the warm re-read ratio, the tokens that the server read over the tokens that
stood in no sequence it had seen before. The first request of a shape, which is cold, is left out; a prompt
with nothing new counts as one new token, for one must be fed. 1.00 is ideal. And the median time to the
first token of the warm requests.

What a server read: the counter ``crossturn_prefilled_tokens_total`` of its ``/metrics`` where it has
one, which counts what was read in idle time and for cancelled requests too; else ``prompt_tokens -
cached_tokens`` of the usage, and then what a cancelled request cost is not known.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from shapes import SHAPES, Answer, Message, Turn, Writer, said

from cache.planner import longest_common_token_prefix
from model.text.chat import ChatFormat
from model.text.tokenizer import TextTokenizer

Ids = NDArray[np.uint32]


@dataclass
class Tally:
    """What one shape cost on one server."""

    n_read: int = 0
    n_new: int = 0
    first_token_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return self.n_read / max(self.n_new, 1)


Results = dict[str, dict[str, Tally]]
"""Tallies by server and shape."""


@dataclass(frozen=True)
class Reply:
    answer: Answer
    n_prompt: int
    n_cached: int
    first_token_s: float


class Seen:
    """Every sequence a server has had, and how much of a prompt is new beside them."""

    def __init__(self, chat: ChatFormat, tokenizer: TextTokenizer) -> None:
        self._chat = chat
        self._tokenizer = tokenizer
        self._sequences: list[Ids] = []

    def n_new(self, turn: Turn) -> int:
        ids = self._render(turn, turn.messages)
        return len(ids) - max((longest_common_token_prefix(ids, old) for old in self._sequences), default=0)

    def add(self, turn: Turn, answer: Answer) -> None:
        text = answer.content
        if turn.thinking:
            text = answer.reasoning + ("\n</think>\n\n" + text if text else "")
        prompt = self._render(turn, turn.messages)
        self._sequences.append(np.concatenate([prompt, self._tokenizer.encode(text)]))
        if answer.calls:
            # What the model wrote for its calls is known only as they are rendered again before a result.
            called = said(answer, echo=True) | {"tool_calls": list(answer.calls)}
            result: Message = {"role": "tool", "content": ""}
            self._sequences.append(self._render(turn, (*turn.messages, called, result)))

    def _render(self, turn: Turn, messages: Sequence[Message]) -> Ids:
        prompt = self._chat.render(
            list(messages),
            tools=list(turn.tools) or None,
            template_kwargs={"enable_thinking": turn.thinking},
        )
        return prompt.ids


class Server:
    """One server under test, driven over HTTP."""

    def __init__(self, name: str, url: str, *, model: str | None, with_keys: bool, max_tokens: int) -> None:
        self.name = name
        self._http = httpx.Client(base_url=url, timeout=600)
        self._with_keys = with_keys
        self._max_tokens = max_tokens
        self._model = model or self._http.get("/v1/models").json()["data"][0]["id"]
        self._has_counter = "crossturn_prefilled_tokens_total" in self._http.get("/metrics").text

    def chat(self, turn: Turn, session: str, *, give_up_after_s: float | None = None) -> Reply | None:
        """Send one turn, streamed; None when it was cancelled on purpose."""
        body: dict[str, object] = {
            "model": self._model,
            "messages": list(turn.messages),
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": turn.thinking},
        }
        if turn.tools:
            body["tools"] = list(turn.tools)
            body["tool_choice"] = "required" if turn.must_call else "auto"
        headers = {"X-Session-Id": session} if self._with_keys and not turn.keyless else {}
        started = time.perf_counter()
        with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                raise SystemExit(f"{self.name}: {response.status_code} {response.read().decode()}")
            if turn.is_cancelled:
                time.sleep(give_up_after_s or 0.0)
                return None
            return _read_stream(response.iter_lines(), started)

    def n_read(self) -> int | None:
        """Tokens read since the start, once the server is idle; None where it has no such counter."""
        time.sleep(0.05)  # what is read in idle time is asked for just after a reply
        while self._has_counter:
            first, running = self._counters()
            # The server counts between two steps: had it been at work, the second look would differ.
            second, _ = self._counters()
            if first == second and running == 0:
                return first
        return None

    def _counters(self) -> tuple[int, int]:
        """Tokens read, and requests under way."""
        text = self._http.get("/metrics").text
        read, running = (
            float(re.search(rf"^crossturn_{name} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]
            for name in ("prefilled_tokens_total", "requests_running")
        )
        return int(read), int(running)


def _read_stream(lines: Iterable[str], started: float) -> Reply:
    content, reasoning, first = "", "", None
    usage: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", []):
            delta = choice.get("delta", {})
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for part in delta.get("tool_calls") or []:
                _add_call(calls, part)
            if first is None and (content or reasoning or calls):
                first = time.perf_counter()
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    first_token_s = (first or time.perf_counter()) - started
    return Reply(
        Answer(content, reasoning, tuple(calls.values())), usage["prompt_tokens"], cached, first_token_s
    )


def _add_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    """Join one delta of a tool call."""
    nothing = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(part.get("index", 0), nothing)
    call["id"] += part.get("id") or ""
    for name in ("name", "arguments"):
        call["function"][name] += (part.get("function") or {}).get(name) or ""


def run_shape(
    name: str, server: Server, seen: Seen, n_words: int, n_turns: int, n_system_words: int | None = None
) -> Tally:
    """Drive one shape to its end."""
    tally = Tally()
    shape = SHAPES[name](Writer(f"{name} {n_words}", n_words, n_system_words), n_turns)
    cold_s: float | None = None
    n_before = server.n_read()
    turn = next(shape)
    while True:
        n_new = max(seen.n_new(turn), 1)
        reply = server.chat(turn, f"{name}/{turn.session}", give_up_after_s=(cold_s or 0.0) / 3)
        n_after = server.n_read()
        n_used = 0 if reply is None else reply.n_prompt - reply.n_cached
        n_read = n_used if n_before is None or n_after is None else n_after - n_before
        n_before = n_after
        if cold_s is not None:
            tally.n_read += n_read
            if reply is not None:
                tally.n_new += n_new
                tally.first_token_s.append(reply.first_token_s)
        if reply is not None:
            seen.add(turn, reply.answer)
            cold_s = cold_s or reply.first_token_s
        try:
            turn = shape.send(Answer() if reply is None else reply.answer)
        except StopIteration:
            return tally


def report(results: Results, n_words: int) -> str:
    """A markdown table: one row a shape, two columns a server."""
    servers = list(results)
    head = " | ".join(f"{name} re-read | {name} first token" for name in servers)
    lines = [f"| {n_words} words a message | {head} |", "|---|" + "---:|" * (2 * len(servers))]
    for shape in [shape for shape in SHAPES if any(shape in tallies for tallies in results.values())]:
        cells = []
        for name in servers:
            tally = results[name].get(shape)
            cells.append(
                " | "
                if tally is None
                else f"{tally.ratio:.2f} | {statistics.median(tally.first_token_s) * 1000:.0f} ms"
            )
        lines.append(f"| {shape} | " + " | ".join(cells) + " |")
    totals = []
    for name in servers:
        n_read = sum(tally.n_read for tally in results[name].values())
        n_new = sum(tally.n_new for tally in results[name].values())
        totals.append(f"**{n_read / max(n_new, 1):.2f}** | ")
    lines.append("| **all** | " + " | ".join(totals) + " |")
    return "\n".join(lines)


def read_results(path: Path) -> Results:
    """What earlier runs measured; nothing where there is no such file."""
    if not path.exists():
        return {}
    kept: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return {name: {shape: Tally(**t) for shape, t in tallies.items()} for name, tallies in kept.items()}


def write_results(path: Path, results: Results) -> None:
    """The inverse of :func:`read_results`."""
    kept = {name: {shape: asdict(t) for shape, t in tallies.items()} for name, tallies in results.items()}
    path.write_text(json.dumps(kept, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Re-read ratio of conversation shapes.")
    parser.add_argument("--url", action="append", required=True, metavar="NAME=URL", help="repeatable")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the model that is served")
    parser.add_argument("--model", help="model name to send; default: the first that the server lists")
    parser.add_argument("--words", type=int, default=600, help="words a message")
    parser.add_argument("--system-words", type=int, help="words a system prompt; default: as any message")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument(
        "--keys", action=argparse.BooleanOptionalAction, default=True, help="send session keys"
    )
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), help="only these; repeatable")
    parser.add_argument("--results", type=Path, metavar="FILE", help="add to what earlier runs measured")
    arguments = parser.parse_args()
    tokenizer = TextTokenizer.from_dir(arguments.tokenizer)
    results = {} if arguments.results is None else read_results(arguments.results)
    for pair in arguments.url:
        name, _, url = pair.partition("=")
        server = Server(
            name, url, model=arguments.model, with_keys=arguments.keys, max_tokens=arguments.max_tokens
        )
        seen = Seen(ChatFormat(tokenizer), tokenizer)
        for shape in arguments.shape or SHAPES:
            tally = run_shape(shape, server, seen, arguments.words, arguments.turns, arguments.system_words)
            results.setdefault(name, {})[shape] = tally
            if arguments.results is not None:
                write_results(arguments.results, results)
    print(report(results, arguments.words))


if __name__ == "__main__":
    main()
