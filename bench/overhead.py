"""What the server adds to the bare decode loop: streams through HTTP beside the loop alone.

    python bench/overhead.py --model demo --tokens 100 --rounds 15
    python bench/overhead.py --streams 8 --tokens 300 --rounds 5 --interval 0

Both sides write the same number of tokens greedily after a prompt of the same length, in processes that
stay up and take turns, so that whatever else the machine does meets both. The stop tokens are biased away:
the reply is as long as it is asked to be. Printed are the median of the rounds' ratios and the ratio of
the best rounds.
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
from contextlib import contextmanager
from pathlib import Path

import httpx
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
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--streams", type=int, default=1, help="replies written at once")
    parser.add_argument("--interval", help="the server's --stream-interval-seconds")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = resolve(options.model)
    if options.bare:
        run_bare(path, options.tokens, options.streams)
        return
    with bare_loop(path, options.tokens, options.streams) as loop, server(path, options.interval) as url:
        body = request(path, options.tokens)
        rounds = [(next(loop), stream_all(url, body, options.streams)) for _ in range(options.rounds + 1)]
    bare, served = np.array(rounds[1:]).T
    print(f"bare loop {1e3 * np.median(bare):.2f} ms a token, server {1e3 * np.median(served):.2f} ms")
    print(
        f"the server runs at {np.median(bare / served):.3f} of the bare loop's speed, "
        f"in the best rounds at {bare.min() / served.min():.3f}"
    )


def run_bare(path: Path, n_tokens: int, n_streams: int) -> None:
    """For every line read, print the seconds a step of the bare loop takes: launch one, read the last."""
    prepare_side(CROSSTURN)
    import mlx.core as mx

    from model.checkpoint.load import load
    from model.sampling import Sampler, SamplingParams, sample_rows

    model = load(path)
    greedy = [Sampler(SamplingParams(temperature=0), model.config.vocab_size)] * n_streams
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
            following = sample_rows(greedy, batch.step(tokens), on_host=model.steps_on_host)
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
def server(path: Path, interval: str | None) -> Iterator[str]:
    """A server over the model at ``path``; yields its base URL."""
    command = [sys.executable, "-m", "server.cli", "serve", "--model", str(path), "--port", "0"]
    command += [] if interval is None else ["--stream-interval-seconds", interval]
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
        "logit_bias": {str(token): -100 for token in read_config(path).eos_token_ids},
    }


def stream_all(url: str, body: dict[str, object], n_streams: int) -> float:
    """Seconds a token takes in each of ``n_streams`` replies written at once, on average."""
    with ThreadPoolExecutor(n_streams) as threads:
        seconds = list(threads.map(lambda i: stream_once(url, body, f"session-{i}"), range(n_streams)))
    return float(np.mean(seconds))


def stream_once(url: str, body: dict[str, object], session: str) -> float:
    """Seconds a token of one reply takes, from its first text to its last, so without the prompt."""
    times, n_tokens, headers = [], 0, {"X-Session-Id": session}
    with httpx.stream("POST", f"{url}/chat/completions", json=body, headers=headers, timeout=600) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
                if delta.get("content") or delta.get("reasoning_content"):  # the first chunk has but a role
                    times.append(time.perf_counter())
                if chunk.get("usage"):
                    n_tokens = chunk["usage"]["completion_tokens"]
    assert n_tokens == body["max_tokens"], f"the reply ended after {n_tokens} tokens"
    return (times[-1] - times[0]) / (n_tokens - 1)


if __name__ == "__main__":
    main()
