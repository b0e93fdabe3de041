"""How long a running stream pauses while a long prompt is read beside it.

    python bench/gap.py --model demo --prompt 8000

One reply is being written; a long prompt arrives and is read in chunks between its tokens. Printed are the
gaps between the reply's tokens before and meanwhile, and what a chunk takes on its own, at the start of
the prompt and at its end.
"""

from __future__ import annotations

import argparse
import time

from model.backend import prepare

prepare()

import numpy as np  # noqa: E402
from filled import filled_state  # noqa: E402
from loops import Loop, random_ids  # noqa: E402

from cache.planner import SlotKey  # noqa: E402
from model.checkpoint.config import read_config  # noqa: E402
from model.checkpoint.hub import resolve  # noqa: E402
from model.checkpoint.load import load  # noqa: E402
from model.forward import Forward  # noqa: E402
from model.sampling import SamplingParams  # noqa: E402
from model.text.chat import RenderedPrompt  # noqa: E402
from server.engine.admission import LoopOptions  # noqa: E402
from server.events import Event, Finished, GenerationRequest  # noqa: E402

N_ALONE = 50  # tokens of the reply before the prompt arrives


def main() -> None:
    """Write, let the prompt arrive, and compare the gaps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="directory, Hub name or demo")
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the prompt that arrives")
    parser.add_argument("--chunk", type=int, help="tokens read between two tokens written")
    options = parser.parse_args()
    path = resolve(options.model)
    loop = Loop(path, options=LoopOptions(idle_prefill=False, shared_prefill_tokens=options.chunk))
    forward = load(path)
    chunk = options.chunk or forward.part_tokens // 4
    endless = tuple((token, -100.0) for token in sorted(read_config(path).eos_token_ids))
    alone, beside = gaps(loop, options.prompt, SamplingParams(temperature=0.0, logit_bias=endless))
    own = [1e3 * chunk_seconds(forward, at, chunk) for at in (0, options.prompt - chunk)]
    print(f"between tokens alone: median {np.median(alone):.1f} ms, largest {alone.max():.1f} ms")
    print(
        f"while {options.prompt} tokens are read, {chunk} at a time: "
        f"median {np.median(beside):.1f} ms, largest {beside.max():.1f} ms"
    )
    print(f"a chunk on its own: {own[0]:.1f} ms at the prompt's start, {own[1]:.1f} ms at its end")


def gaps(loop: Loop, n_prompt: int, sampling: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Milliseconds between the steps that write the reply's tokens: before the prompt arrives, and until
    it is read."""
    events: list[Event] = []
    running = _request("running", random_ids(30, 0, loop.info.vocab_size), 10_000, sampling)
    loop.engine.submit(running, events.append)
    times: list[float] = []
    while len(times) <= N_ALONE:
        loop.engine.step()
        times.append(time.perf_counter())
    late: list[Event] = []
    prompt = random_ids(n_prompt, 1, loop.info.vocab_size)
    loop.engine.submit(_request("late", prompt, 1, sampling), late.append)
    meanwhile = times[-1:]
    while not any(isinstance(event, Finished) for event in late):
        loop.engine.step()
        meanwhile.append(time.perf_counter())
    assert not any(isinstance(event, Finished) for event in events), "the running reply came to its end"
    loop.engine.cancel("running")
    return 1e3 * np.diff(times[2:]), 1e3 * np.diff(meanwhile)


def chunk_seconds(forward: Forward, n_past: int, n_tokens: int) -> float:
    """Seconds for one chunk after ``n_past`` tokens, the best of three."""
    ids = random_ids(n_tokens, 2, forward.config.vocab_size)
    found = []
    for _ in range(4):
        state = filled_state(forward, n_past)
        started = time.perf_counter()
        forward.prefill(state, ids)
        found.append(time.perf_counter() - started)
    return min(found[1:])


def _request(name: str, ids: np.ndarray, max_tokens: int, sampling: SamplingParams) -> GenerationRequest:
    return GenerationRequest(
        id=name,
        slot=SlotKey.for_session(None, name),
        prompt=RenderedPrompt(ids),
        max_tokens=max_tokens,
        sampling=sampling,
    )


if __name__ == "__main__":
    main()
