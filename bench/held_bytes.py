"""Bytes held after many turns of one conversation, over the state of its last turn.

    python bench/held_bytes.py --model demo --turns 20 --words 300 --mlx-lm

The state of the last turn is what decoding needs anyway: KV rows of the whole conversation and one
recurrent state. What is held beyond it is the price of going back. mlx-lm's figures are those that its
server logs about its prompt cache after the same turns.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model.backend import prepare

prepare()

import httpx  # noqa: E402
from loops import Loop  # noqa: E402
from shapes import Message, Writer  # noqa: E402
from sides import mlx_lm_copy  # noqa: E402

from model.checkpoint.hub import resolve  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--words", type=int, default=300)
    parser.add_argument("--mlx-lm", action="store_true", help="run mlx-lm's server for the same turns")
    parser.add_argument("--port", type=int, default=8190, help="for mlx-lm's server")
    options = parser.parse_args()
    path = resolve(options.model)
    print("| server | tokens | state of the last turn | held | ratio |")
    print("|---|---:|---:|---:|---:|")
    loop = Loop(path)
    messages = _conversation(loop, options.turns, options.words)
    slots = loop.engine.store.slots()
    n_tokens = max(entry.n_tokens for slot in slots for entry in slot.entries)
    _row("crossturn", n_tokens, loop.state_bytes(n_tokens), loop.engine.store.n_bytes)
    if options.mlx_lm:
        with tempfile.TemporaryDirectory() as scratch:
            held = _mlx_lm_bytes(mlx_lm_copy(path, Path(scratch)), messages, options.port)
        _row("mlx-lm", n_tokens, _mlx_lm_state_bytes(path, n_tokens), held)


def _row(name: str, n_tokens: int, state: int, held: int) -> None:
    print(f"| {name} | {n_tokens} | {state / 2**20:.1f} MiB | {held / 2**20:.1f} MiB | {held / state:.2f} |")


def _conversation(loop: Loop, n_turns: int, n_words: int) -> list[Message]:
    """Lead the conversation; all of its messages."""
    write = Writer("held bytes", n_words)
    messages: list[Message] = [write.system()]
    for _ in range(n_turns):
        messages.append(write.user())
        told = loop.ask(loop.render(messages), max_tokens=24)
        messages.append({"role": "assistant", "content": told.text})
    return messages


def _mlx_lm_bytes(path: Path, messages: list[Message], port: int) -> int:
    """What mlx-lm's server says it holds after the same turns, in bytes (it logs them to 10 MB)."""
    with _mlx_lm_server(path, port) as log:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=1200) as client:
            for end in range(2, len(messages) + 1, 2):
                body = {
                    "model": "default_model",
                    "messages": messages[:end],
                    "max_tokens": 24,
                    "temperature": 0,
                    "chat_template_kwargs": {"enable_thinking": False},
                }
                client.post("/v1/chat/completions", json=body).raise_for_status()
        told = re.findall(r"Prompt Cache: \d+ sequences, ([\d.]+) GB", log.read_text())
    return int(float(told[-1]) * 1e9)


@contextmanager
def _mlx_lm_server(path: Path, port: int) -> Iterator[Path]:
    """Run the server; yields the file that it logs to."""
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(path), "--port", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            transport = httpx.HTTPTransport(retries=60)
            with httpx.Client(transport=transport) as client:
                client.get(f"http://127.0.0.1:{port}/v1/models")
            yield Path(log.name)
        finally:
            server.terminate()
            server.wait()


def _mlx_lm_state_bytes(path: Path, n_tokens: int) -> int:
    """KV rows (in steps of 256) and recurrent states of one mlx-lm cache at ``n_tokens``."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    with tempfile.TemporaryDirectory() as scratch:
        model, _ = load_model(mlx_lm_copy(path, Path(scratch)))
        cache = make_prompt_cache(model)
        mx.eval(model(mx.zeros((1, 1), mx.uint32), cache=cache))
    rows = -(-n_tokens // 256)
    return sum(int(c.nbytes) * (rows if hasattr(c, "keys") else 1) for c in cache)


if __name__ == "__main__":
    main()
