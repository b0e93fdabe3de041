"""How much faster replies are written with drafts: one that rewrites a file, and prose that repeats nothing.

    python bench/drafts.py --model demo --rounds 5

What the model writes is scripted, so that every model writes the same; it computes all that it would. With
and without drafts turn about, in one process; figures are medians over the rounds, of decoding alone.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.backend import prepare

prepare()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from loops import Loop  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.models import qwen3_5  # noqa: E402

from cache.planner import SlotKey  # noqa: E402
from model.checkpoint.config import text_arguments  # noqa: E402
from model.checkpoint.hub import resolve  # noqa: E402
from model.checkpoint.mtp import MtpModules  # noqa: E402
from model.sampling import SamplingParams  # noqa: E402
from model.text.chat import RenderedPrompt  # noqa: E402
from server.engine.admission import LoopOptions  # noqa: E402
from server.events import Event, Finished, GenerationRequest, Progress  # noqa: E402
from server.settings import Settings  # noqa: E402

N_FILE_TOKENS = 2000
PROSE = Path(__file__).parent.parent / "docs"


@dataclass
class Script:
    """What replies are made of: the token that comes after so many, by the reply's number."""

    told: list[dict[int, int]]

    def token(self, reply: int, n_fed: int) -> int:
        return self.told[reply].get(n_fed, 0)


class ScriptedBatch:
    """A decode batch whose logits say what the script wants."""

    def __init__(self, batch: Any, script: Script, vocab_size: int) -> None:
        self._batch = batch
        self._script = script
        self._ids = mx.arange(vocab_size)
        self._number: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def join(self, key: int, state: Any) -> None:
        self._number[key] = len(self._number) % len(self._script.told)
        self._batch.join(key, state)

    def step(self, tokens: mx.array) -> mx.array:
        logits = self._batch.step(tokens)
        return self._forced(logits, [[self._batch.length(key)] for key in self._batch.keys])[:, 0]

    def extend(self, tokens: mx.array) -> mx.array:
        before = [self._batch.length(key) for key in self._batch.keys]
        logits = self._batch.extend(tokens)
        return self._forced(logits, [[n + t + 1 for t in range(tokens.shape[1])] for n in before])

    def _forced(self, logits: mx.array, places: list[list[int]]) -> mx.array:
        wanted = [
            [self._script.token(self._number[key], n) for n in row]
            for key, row in zip(self._batch.keys, places, strict=True)
        ]
        is_wanted = self._ids == mx.array(wanted)[..., None]
        return mx.where(is_wanted, 100.0, logits.reshape(is_wanted.shape) * 0)


def main() -> None:
    """Measure each case and print a table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--companies", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--cases", nargs="+", choices=["file", "prose"], default=["file", "prose"])
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument(
        "--mtp-path", type=Path, help="a head to draft with; random for one that knows nothing"
    )
    options = parser.parse_args()
    path = resolve(options.model)
    clock = time.process_time if options.cpu_time else time.perf_counter
    head = options.mtp_path
    if head is not None and str(head) == "random":
        head = write_random_head(path, Path(tempfile.mkdtemp()))
    sides = {
        drafts: Loop(
            path,
            options=LoopOptions(idle_prefill=False, drafts=drafts),
            settings=Settings(drafts=drafts, mtp_path=head if drafts else None),
        )
        for drafts in (True, False)
    }
    for loop in sides.values():
        decoder: Any = loop.engine._decoder
        decoder._clock = clock
    cases = {"file": ("a file rewritten with three changes", rewritten), "prose": ("prose", prose)}
    for name, make in (cases[case] for case in options.cases):
        for n_replies in options.companies:
            seconds: dict[bool, list[float]] = {True: [], False: []}
            drafted = accepted = 0
            for _ in range(options.rounds):
                for drafts, loop in sides.items():
                    took, ends = write(loop, *make(loop), n_replies, clock)
                    seconds[drafts].append(took)
                    drafted += sum(end.n_drafted for end in ends)
                    accepted += sum(end.n_accepted for end in ends)
            ratio = statistics.median(seconds[False]) / statistics.median(seconds[True])
            print(
                f"{name}, {n_replies} together: {statistics.median(seconds[False]):6.2f} s without, "
                f"{statistics.median(seconds[True]):6.2f} s with drafts, {ratio:5.2f} x as fast; "
                f"{drafted // options.rounds} tokens guessed, {accepted // options.rounds} came true"
            )


def write_random_head(model: Path, folder: Path) -> Path:
    """A head for the model in directory ``model`` with random weights, in ``folder``."""
    raw = json.loads((model / "config.json").read_text())
    text = text_arguments(raw)
    whole = qwen3_5.ModelArgs(model_type="qwen3_5", text_config=text)
    modules = MtpModules(qwen3_5.TextModelArgs.from_dict(whole.text_config))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_5_mtp", "text_config": text}))
    weights = dict(tree_flatten(modules.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


def rewritten(loop: Loop) -> tuple[np.ndarray, np.ndarray]:
    """A prompt that holds a file, and the file with three places changed."""
    lines = [
        f"def step_{i}(value: int) -> int:\n    return value * {i * 7919 % 1000} + {i * 31 % 97}\n\n"
        for i in range(200)
    ]
    text = np.array(loop.tokenizer.encode("".join(lines)))[:N_FILE_TOKENS]
    other = np.array(loop.tokenizer.encode("    # this is what was asked for\n"))
    reply = np.concatenate([text[:400], other, text[410:1100], other, text[1105:1700], other, text[1700:]])
    return np.concatenate([text, loop.tokenizer.encode("\n\nRewrite it.\n")]), reply


def prose(loop: Loop) -> tuple[np.ndarray, np.ndarray]:
    """A prompt and a reply of prose, different parts of the documentation."""
    texts = [
        re.sub(r"```.*?```|\|.*?\n", "", path.read_text(), flags=re.S) for path in sorted(PROSE.glob("*.md"))
    ]
    ids = np.array(loop.tokenizer.encode("\n".join(texts)))
    return ids[:1000], ids[3000:5000]


def write(
    loop: Loop, prompt: np.ndarray, reply: np.ndarray, n_replies: int, clock: Callable[[], float]
) -> tuple[float, list[Finished]]:
    """Seconds of decoding ``n_replies`` replies together, and their ends."""
    decoder: Any = loop.engine._decoder
    told = dict(enumerate(reply.tolist(), start=len(prompt)))
    plain = decoder._forward.new_batch()
    decoder._batch = ScriptedBatch(plain, Script([told]), loop.info.vocab_size)
    events: list[Event] = []
    for i in range(n_replies):
        loop.engine.submit(request(f"r{i}", prompt, len(reply)), events.append)
    while sum(isinstance(event, Progress) for event in events) < n_replies or loop.engine.stats().n_waiting:
        loop.engine.step()
    began = clock()
    while sum(isinstance(event, Finished) for event in events) < n_replies:
        loop.engine.step()
    took = clock() - began
    decoder._batch = decoder._forward.new_batch()
    return took, [event for event in events if isinstance(event, Finished)]


def request(name: str, prompt: np.ndarray, max_tokens: int) -> GenerationRequest:
    """Greedy, in a session of its own that remembers nothing."""
    return GenerationRequest(
        id=name,
        slot=SlotKey.for_session(None, f"{name} {time.perf_counter()}"),
        prompt=RenderedPrompt(np.asarray(prompt, np.uint32)),
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=0.0),
    )


if __name__ == "__main__":
    main()
