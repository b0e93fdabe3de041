"""What the server adds to the bare decode loop: one stream through HTTP beside the loop alone.

    python bench/overhead.py --model demo --tokens 400

Both sides write the same number of tokens greedily after a prompt of the same length, turn about, in
processes of their own. The stop tokens are biased away, so that the reply is as long as it is asked to be.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
from sides import CROSSTURN, as_child, prepare_side, run_side

from model.checkpoint.config import read_config
from model.checkpoint.hub import resolve

PROMPT = "Please count upwards from one in words, and do not stop."


def main() -> None:
    """Measure both sides for some rounds and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="directory, Hub name or demo")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    path = resolve(options.model)
    bare, served = [], []
    for _ in range(options.rounds):
        bare.append(run_side(__file__, CROSSTURN, path, [options.tokens])[0])
        served.append(served_seconds(path, options.tokens))
    loop, server = float(np.median(bare)), float(np.median(served))
    print(f"bare loop {1e3 * loop:.2f} ms a token, server {1e3 * server:.2f} ms")
    print(f"the server runs at {loop / server:.3f} of the bare loop's speed")


def child(side: str, path: Path, values: list[int]) -> list[float]:
    """Seconds a token of the bare loop takes: launch the next step, read the last."""
    prepare_side(side)
    import mlx.core as mx

    from model.checkpoint.load import load

    model = load(path)
    state = model.new_state()
    logits = model.prefill(state, np.arange(30, dtype=np.uint32)).logits
    batch = model.new_batch()
    batch.join(0, state)
    tokens = mx.argmax(logits)[None]
    for i in range(values[0] + 10):
        if i == 10:
            start = time.perf_counter()
        following = mx.argmax(batch.step(tokens), axis=-1)
        mx.async_eval(following)
        tokens.tolist()
        tokens = following
    return [(time.perf_counter() - start) / values[0]]


def served_seconds(path: Path, n_tokens: int) -> float:
    """Seconds a token of one streamed reply takes, from its first chunk to its last."""
    command = [sys.executable, "-m", "server.cli", "serve", "--model", str(path), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+/v1", server.stdout.readline())
        assert found is not None, "the server did not start"
        body = {
            "model": path.name,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": n_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logit_bias": {str(token): -100 for token in read_config(path).eos_token_ids},
        }
        stream_once(found[0], body | {"max_tokens": 20})
        return stream_once(found[0], body)
    finally:
        server.terminate()
        server.wait()


def stream_once(url: str, body: dict[str, object]) -> float:
    """Seconds a token of one reply."""
    times, n_tokens = [], 0
    with httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=600) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                if chunk["choices"] and any(chunk["choices"][0]["delta"].values()):
                    times.append(time.perf_counter())
                if chunk.get("usage"):
                    n_tokens = chunk["usage"]["completion_tokens"]
    assert n_tokens == body["max_tokens"], f"the reply ended after {n_tokens} tokens"
    return (times[-1] - times[0]) / n_tokens


if __name__ == "__main__" and not as_child(child):
    main()
