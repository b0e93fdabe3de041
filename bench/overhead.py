"""What the server adds to the bare decode loop: streams through HTTP beside the loop alone.

    python bench/overhead.py --model demo --tokens 100 --rounds 8 --starts 9
    python bench/overhead.py --streams 8 --tokens 300 --rounds 5 --interval 0

Both sides write the same number of tokens after a prompt of the same length, in processes that stay up and
take turns, so that whatever else the machine does meets both; the client has a process of its own. The same
code is up to a tenth slower in one process than in the next, so both are started several times. Both
pick greedily, the stop tokens biased away: the reply is as long as it is asked to be. Of several streams the
last to begin is measured, while the others go on: the bare loop has read all prompts before it starts, too.
Printed are the median of the rounds' ratios for each start, and the median over the starts.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
from sides import CROSSTURN, prepare_side

from model.checkpoint.config import read_config
from model.checkpoint.hub import resolve

PROMPT = "Please count upwards from one in words, and do not stop."
N_PROMPT = 30


def main() -> None:
    """Let both sides take turns for some rounds and compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="directory, Hub name or demo")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--starts", type=int, default=9, help="pairs of processes")
    parser.add_argument("--streams", type=int, default=1, help="replies written at once")
    parser.add_argument("--interval", help="the server's --stream-interval-seconds")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = resolve(options.model)
    if options.bare:
        run_bare(path, options.tokens, options.streams)
        return
    ratios = []
    for _ in range(options.starts):
        with (
            bare_loop(path, options.tokens, options.streams) as loop,
            server(path, options.interval, "--no-drafts") as url,
        ):
            body = request(path, options.tokens)
            n_others = options.streams - 1
            rounds = [(next(loop), measured_stream(url, body, n_others)) for _ in range(options.rounds + 1)]
        bare, served = np.array(rounds[1:]).T
        ratios.append(np.median(bare / served))
        print(
            f"bare loop {1e3 * np.median(bare):.2f} ms a token, server {1e3 * np.median(served):.2f} ms: "
            f"{ratios[-1]:.3f}",
            flush=True,
        )
    print(f"the server runs at {np.median(ratios):.3f} of the bare loop's speed")


def run_bare(path: Path, n_tokens: int, n_streams: int) -> None:
    """For every line read, print the seconds a step of the bare loop takes: launch one, read the last."""
    prepare_side(CROSSTURN)
    import mlx.core as mx

    from model.checkpoint.load import load
    from model.sampling import Sampler, SamplingParams, sample_rows

    model = load(path)
    params = SamplingParams(temperature=0, logit_bias=tuple((token, -100.0) for token in end_tokens(path)))
    greedy = [Sampler(params, model.config.vocab_size) for _ in range(n_streams)]
    for _ in sys.stdin:
        batch = model.new_batch()
        for key in range(n_streams):
            state = model.new_state()
            logits = model.prefill(state, np.arange(N_PROMPT, dtype=np.uint32)).logits
            batch.join(key, state)
        tokens = mx.repeat(mx.argmax(logits)[None], n_streams)
        start = 0.0
        for i in range(n_tokens):
            if i == 1:
                start = time.perf_counter()
            following = sample_rows(greedy, batch.step(tokens))
            mx.async_eval(following)
            tokens.tolist()
            tokens = following
        print((time.perf_counter() - start) / (n_tokens - 1), flush=True)


@contextmanager
def bare_loop(path: Path, n_tokens: int, n_streams: int) -> Iterator[Iterator[float]]:
    """A process that runs the bare loop whenever it is asked for the next figure."""
    command = [sys.executable, __file__, "--bare", "--model", str(path), "--tokens", str(n_tokens)]
    command += ["--streams", str(n_streams)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def figures() -> Iterator[float]:
            while True:
                print(file=process.stdin, flush=True)
                yield float(process.stdout.readline())

        yield figures()
        process.stdin.close()


@contextmanager
def server(path: Path, interval: str | None, *options: str) -> Iterator[str]:
    """A server over the model at ``path`` with more ``options``; yields its base URL."""
    command = [sys.executable, "-m", "server.cli", "serve", "--model", str(path), "--port", "0"]
    command += [*options, *([] if interval is None else ["--stream-interval-seconds", interval])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+/v1", process.stdout.readline())
        assert found is not None, "the server did not start"
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def request(path: Path, n_tokens: int) -> dict[str, object]:
    """What asks for a streamed reply of exactly ``n_tokens``."""
    return {
        "model": path.name,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": n_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": {str(token): -100 for token in end_tokens(path)},
    }


def end_tokens(path: Path) -> list[int]:
    """What would end a reply before its time, ascending."""
    return sorted(read_config(path).eos_token_ids)


def measured_stream(url: str, body: dict[str, object], n_others: int) -> float:
    """Seconds a token takes in a reply that begins after ``n_others`` and ends before them."""
    is_over, begun = Event(), [Event() for _ in range(n_others)]
    longer = {**body, "max_tokens": 8 * cast(int, body["max_tokens"])}

    def accompany(i: int) -> None:
        try:
            for _, data in frames(url, longer, f"session-{i}"):
                if is_text(json.loads(data)):
                    begun[i].set()
                if is_over.is_set():
                    return
        finally:
            begun[i].set()
        raise AssertionError("a reply beside the measured one ended before it")

    with ThreadPoolExecutor(n_others or 1) as threads:
        others = [threads.submit(accompany, i) for i in range(n_others)]
        for event in begun:
            event.wait()
        try:
            return stream_once(url, body, "measured")
        finally:
            is_over.set()
            for other in others:
                other.result()


def stream_once(url: str, body: dict[str, object], session: str) -> float:
    """Seconds a token of one reply takes, from its first text to its last, so without the prompt."""
    received = list(frames(url, body, session))  # parsed when all is over: the server has but two cores here
    chunks = [(at, json.loads(data)) for at, data in received]
    times = [at for at, chunk in chunks if is_text(chunk)]
    n_tokens = next(chunk["usage"]["completion_tokens"] for _, chunk in chunks if chunk.get("usage"))
    assert n_tokens == body["max_tokens"], f"the reply ended after {n_tokens} tokens"
    seconds: float = (times[-1] - times[0]) / (n_tokens - 1)
    return seconds


def frames(url: str, body: dict[str, object], session: str) -> Iterator[tuple[float, bytes]]:
    """The JSON of each frame of a streamed reply, and when it came."""
    address = urlsplit(url)
    with closing(HTTPConnection(address.netloc, timeout=600)) as connection:
        headers = {"Content-Type": "application/json", "X-Session-Id": session}
        connection.request("POST", f"{address.path}/chat/completions", json.dumps(body), headers)
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                yield time.perf_counter(), line.removeprefix(b"data: ")


def is_text(chunk: dict[str, Any]) -> bool:
    """Whether a chunk brings more of the reply; the first one has but a role."""
    delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


if __name__ == "__main__":
    main()
