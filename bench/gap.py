"""How long running streams pause while a long prompt is read beside them.

    python bench/gap.py --model demo --prompt 8000
    python bench/gap.py --shape 0.8B --streams 16 --prompt 30000 --part 1024 2048 4096

Some replies are being written; a long prompt arrives and is read in parts between their tokens. Printed are,
by the size of a part (0: what the engine chooses), the gaps between two tokens of a stream before and
meanwhile, how long the prompt took, and what a part takes on its own, at the prompt's start and at its end.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from model.backend import prepare

prepare()

import numpy as np  # noqa: E402
from filled import filled_state  # noqa: E402
from loops import Loop, random_ids  # noqa: E402
from random_checkpoint import add_model_arguments, checkpoint  # noqa: E402

from cache.planner import SlotKey  # noqa: E402
from model.checkpoint.config import read_config  # noqa: E402
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
    add_model_arguments(parser)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the prompt that arrives")
    parser.add_argument("--part", type=int, nargs="+", default=[0], help="tokens read between two written")
    options = parser.parse_args()
    with checkpoint(options.shape, options.model) as path:
        print(f"{options.streams} streams, a prompt of {options.prompt} tokens; milliseconds")
        print("| part | gap alone | gap meanwhile | largest | prompt | part at the start | at the end |")
        print("|---:|---:|---:|---:|---:|---:|---:|")
        for part in options.part:
            print(line(path, part, options), flush=True)


def line(path: Path, part: int, options: argparse.Namespace) -> str:
    """The figures of one size of parts; what is measured once before is not counted, for it compiles."""
    limits = LoopOptions(
        idle_prefill=False, drafts=False, shared_prefill_tokens=part or None, max_running=options.streams + 1
    )
    loop = Loop(path, options=limits)
    endless = tuple((token, -100.0) for token in sorted(read_config(path).eos_token_ids))
    sampling = SamplingParams(temperature=0.0, logit_bias=endless)
    for round_ in range(2):
        alone, beside = gaps(loop, options.streams, options.prompt, sampling, round_)
    n_tokens = min(part or loop.engine.forward.part_tokens, options.prompt)
    own = [1e3 * chunk_seconds(loop.engine.forward, at, n_tokens) for at in (0, options.prompt - n_tokens)]
    figures = [np.median(alone), np.median(beside), beside.max(), beside.sum(), *own]
    return f"| {part} | {' | '.join(f'{figure:.1f}' for figure in figures)} |"


def gaps(
    loop: Loop, n_streams: int, n_prompt: int, sampling: SamplingParams, round_: int
) -> tuple[np.ndarray, np.ndarray]:
    """Milliseconds between the steps that write a token of every reply: before the prompt arrives, and until
    it is read."""
    events: list[Event] = []
    for i in range(n_streams):
        ids = random_ids(30, 10 + i + n_streams * round_, loop.info.vocab_size)
        loop.engine.submit(_request(f"running-{i}", ids, 10_000, sampling), events.append)
    times: list[float] = []
    while len(times) <= n_streams + N_ALONE:
        loop.engine.step()
        times.append(time.perf_counter())
    late: list[Event] = []
    prompt = random_ids(n_prompt, round_, loop.info.vocab_size)
    loop.engine.submit(_request(f"late-{round_}", prompt, 1, sampling), late.append)
    meanwhile = times[-1:]
    while not any(isinstance(event, Finished) for event in late):
        loop.engine.step()
        meanwhile.append(time.perf_counter())
    assert not any(isinstance(event, Finished) for event in events), "a running reply came to its end"
    for i in range(n_streams):
        loop.engine.cancel(f"running-{i}")
    return 1e3 * np.diff(times[n_streams + 2 :]), 1e3 * np.diff(meanwhile)


def chunk_seconds(forward: Forward, n_past: int, n_tokens: int) -> float:
    """Seconds for one part after ``n_past`` tokens, the best of three."""
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
