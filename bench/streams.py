"""Many streams at once over HTTP beside the bare decode loop, on a model of a published shape.

    python bench/streams.py --shape 0.8B --streams 1 8 16 32 --tokens 1500
    python bench/streams.py --model demo --streams 1 8 --tokens 300 --sampling default full

The model has random weights and the demo model's tokenizer, for speed alone. The bare loop launches a step,
picks the likeliest tokens, and reads those of the step before; it has nothing to tell. The server is asked
by a client in a process of its own, which reads the streams as they come and counts when all are over. Both
work on the same device in turns, several rounds each. Printed are medians over the rounds: tokens a second
of all streams together while all of them are written (from the first text of the last one to the end of the
first), their ratio, and the time from when the streams are asked for together until the last one has its
first text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from overhead import bare_loop, server
from random_checkpoint import add_model_arguments, checkpoint

SENTENCE = "The river rises behind the mill, runs past the school and falls into the lake by the old road. "
FULL = {
    "temperature": 0.8,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.01,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.05,
    "logit_bias": {str(token): 0.5 for token in range(100, 132)},
    "logprobs": True,
    "top_logprobs": 5,
}
SAMPLING: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0},
    "bias": {"temperature": 0, "logit_bias": {str(token): -100 for token in range(100, 132)}},
    "full": FULL,
}


def main() -> None:
    """Print a line for each number of streams and way of sampling."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_arguments(parser)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--prompt", type=int, default=20, help="sentences of some 25 tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sampling", nargs="+", choices=SAMPLING, default=["default", "full"])
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        run_client(json.loads(options.client))
        return
    limit = ("--max-running", str(max(options.streams)))
    with checkpoint(options.shape, options.model) as path, server(path, None, *limit) as url:
        for n_streams in options.streams:
            for sampling in options.sampling:
                print(measured(path, url, n_streams, sampling, options), flush=True)


def measured(path: Path, url: str, n_streams: int, sampling: str, options: argparse.Namespace) -> str:
    """One line of the table: both sides in turns."""
    bare, served, waited = [], [], []
    with bare_loop(path, options.tokens, n_streams) as loop:
        for round_ in range(options.rounds + 1):
            seconds = next(loop)
            body = {
                "model": path.name,
                "max_tokens": options.tokens,
                "ignore_eos": True,
                "stream": True,
                **SAMPLING[sampling],
            }
            name = f"{n_streams}-{sampling}-{round_}"
            rate, last_first = client(url, body, n_streams, options.prompt, name)
            if round_:
                bare.append(n_streams / seconds)
                served.append(rate)
                waited.append(last_first)
    loop_rate, http_rate = statistics.median(bare), statistics.median(served)
    return (
        f"{n_streams} streams, {sampling}: {http_rate:,.0f} tokens/s of the loop's {loop_rate:,.0f}, "
        f"{http_rate / loop_rate:.2f}; last first text after {1e3 * statistics.median(waited):,.0f} ms"
    )


def client(
    url: str, body: dict[str, Any], n_streams: int, n_sentences: int, name: str
) -> tuple[float, float]:
    """Ask for the streams from a process of its own; tokens a second, and seconds to the last first text."""
    ask = {"url": url, "body": body, "streams": n_streams, "sentences": n_sentences, "name": name}
    command = [sys.executable, __file__, "--client", json.dumps(ask)]
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return told["rate"], told["last_first"]


def run_client(ask: dict[str, Any]) -> None:
    """Print the figures of one round."""
    received: list[list[tuple[float, bytes]]] = [[] for _ in range(ask["streams"])]
    start = threading.Barrier(ask["streams"] + 1)

    def listen(i: int) -> None:
        text = f"Story {ask['name']}, number {i}. {SENTENCE * ask['sentences']}"
        body = {**ask["body"], "messages": [{"role": "user", "content": text}]}
        with lines_of(ask["url"], json.dumps(body), f"{ask['name']}-{i}", start) as stream:
            received[i] += [(time.perf_counter(), line) for line in stream if line.startswith(b"data: {")]

    threads = [threading.Thread(target=listen, args=(i,)) for i in range(ask["streams"])]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    texts = [[(at, n) for at, line in chunks if (n := n_chars(line))] for chunks in received]
    begin, end = max(chunks[0][0] for chunks in texts), min(chunks[-1][0] for chunks in texts)
    # A chunk carries several tokens; they are counted by their share of the stream's text.
    shares = [sum(n for at, n in own if begin < at <= end) / sum(n for _, n in own) for own in texts]
    rate = ask["body"]["max_tokens"] * sum(shares) / (end - begin)
    print(json.dumps({"rate": rate, "last_first": begin - began}))


@contextmanager
def lines_of(url: str, body: str, session: str, start: threading.Barrier) -> Iterator[Any]:
    """The lines of one stream, asked for when all are ready."""
    address = urlsplit(url)
    connection = HTTPConnection(address.netloc, timeout=600)
    connection.connect()
    start.wait()
    try:
        headers = {"Content-Type": "application/json", "X-Session-Id": session}
        connection.request("POST", f"{address.path}/chat/completions", body, headers)
        yield connection.getresponse()
    finally:
        connection.close()


def n_chars(line: bytes) -> int:
    """Characters of the reply's text that a chunk brings."""
    choices = json.loads(line.removeprefix(b"data: "))["choices"]
    delta = choices[0]["delta"] if choices else {}
    return len(delta.get("content") or "") + len(delta.get("reasoning_content") or "")


if __name__ == "__main__":
    main()
