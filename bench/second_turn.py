"""Time to the first text of a conversation's next turn, over HTTP, after histories of several lengths.

    python bench/second_turn.py --shape 0.8B --history 8192 32768
    python bench/second_turn.py --model demo --history 2000 8000

A conversation begins with a long message. Each further turn adds the reply and a question of some 60
tokens, and is timed from the request to the first piece of text, by a client on the same machine that keeps
its connection. Between two turns the server has time to read ahead what it knows of the next one. A fresh
conversation of the same question alone is timed beside it. Printed are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from overhead import server
from random_checkpoint import add_model_arguments, checkpoint
from streams import SENTENCE, n_chars

from model.text.tokenizer import TextTokenizer

PAUSE_S = 0.3
QUESTION = f"Question {{}}: {2 * SENTENCE}"


def main() -> None:
    """Print a line for each length of the history."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_arguments(parser)
    parser.add_argument("--history", type=int, nargs="+", default=[8192, 32768], help="tokens")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    with checkpoint(options.shape, options.model) as path:
        n_sentence = len(TextTokenizer.from_dir(path).encode(SENTENCE))
        with server(path, None) as url, closing(HTTPConnection(urlsplit(url).netloc, timeout=600)) as to:
            for n_history in options.history:
                later = conversation(to, SENTENCE * (n_history // n_sentence), options.turns)
                alone = [turn(to, [said(QUESTION.format(i))], f"alone {n_history} {i}")[0] for i in range(5)]
                appended, fresh = (1e3 * statistics.median(seconds[1:]) for seconds in (later, alone))
                print(
                    f"after {n_history} tokens: {appended:.1f} ms to the first text; "
                    f"the question alone {fresh:.1f} ms"
                )


def conversation(to: HTTPConnection, history: str, n_turns: int) -> list[float]:
    """Seconds to the first text of each turn behind the first."""
    messages = [said(history)]
    seconds = []
    for i in range(n_turns + 1):
        took, text = turn(to, messages, f"after {len(history)}")
        messages += [{"role": "assistant", "content": text}, said(QUESTION.format(i))]
        seconds.append(took)
        time.sleep(PAUSE_S)
    return seconds[1:]


def said(text: str) -> dict[str, str]:
    """A message of the user's."""
    return {"role": "user", "content": text}


def turn(to: HTTPConnection, messages: list[dict[str, str]], session: str) -> tuple[float, str]:
    """Seconds to the first text of the reply, and all of it."""
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": 16,
        "stream": True,
        "enable_thinking": False,
        "ignore_eos": True,
    }
    data = json.dumps(body)
    began, first, text = time.perf_counter(), 0.0, ""
    headers = {"Content-Type": "application/json", "X-Session-Id": session}
    to.request("POST", "/v1/chat/completions", data, headers)
    for line in to.getresponse():
        if line.startswith(b"data: {") and n_chars(line):
            first = first or time.perf_counter() - began
            text += json.loads(line.removeprefix(b"data: "))["choices"][0]["delta"]["content"]
    return first, text


if __name__ == "__main__":
    main()
