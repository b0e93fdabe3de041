"""Many short prompts that arrive at once: how long until the last of them has its first token.

    python bench/arrivals.py --model demo --requests 16 32
    python bench/arrivals.py --shape 0.8B --requests 16 32

The engine alone, without HTTP. ``together`` reads prompts of several requests in one pass, ``in turns`` reads
each in a pass of its own, as the engine does where a device gains nothing by the former. Both take turns in
one process; figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time

from model.backend import prepare

prepare()

import numpy as np  # noqa: E402
from loops import Loop  # noqa: E402
from random_checkpoint import add_model_arguments, checkpoint  # noqa: E402

from cache.planner import SlotKey  # noqa: E402
from model.sampling import SamplingParams  # noqa: E402
from model.text.chat import RenderedPrompt  # noqa: E402
from server.engine.admission import LoopOptions  # noqa: E402
from server.events import Event, Finished, GenerationRequest, Progress  # noqa: E402

N_SYSTEM, N_HEADER = 120, 6  # tokens of a prompt's system message, and of the reply's header


def main() -> None:
    """Print a line for each number of requests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_arguments(parser)
    parser.add_argument("--requests", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--prompt", type=int, default=440, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=8, help="tokens of each reply")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with checkpoint(options.shape, options.model) as path:
        limits = LoopOptions(idle_prefill=False, drafts=False, max_running=max(options.requests))
        loop = Loop(path, options=limits)
        print(f"prompts of {options.prompt} tokens; the last first token after, in engine steps, and in all")
        print("| requests | in turns | together | ratio |\n|---:|---:|---:|---:|")
        for n_requests in options.requests:
            print(line(loop, n_requests, options), flush=True)


def line(loop: Loop, n_requests: int, options: argparse.Namespace) -> str:
    """One line of the table: both ways in turns, after a round of each that compiles."""
    forward = loop.engine.forward
    was_ragged = forward.reads_ragged
    found: dict[bool, list[tuple[float, int, float]]] = {False: [], True: []}
    try:
        for round_ in range(options.rounds + 1):
            for reads_ragged in (False, True):
                forward.reads_ragged = reads_ragged
                prompts = [
                    prompt(options.prompt, (round_, int(reads_ragged), i), loop.info.vocab_size)
                    for i in range(n_requests)
                ]
                measured = last_first(loop, prompts, options.tokens)
                if round_:
                    found[reads_ragged].append(measured)
    finally:
        forward.reads_ragged = was_ragged
    medians = [
        [statistics.median(column) for column in zip(*rounds, strict=True)] for rounds in found.values()
    ]
    cells = [
        f"{1e3 * first:.0f} ms, {steps:.0f} steps, {1e3 * whole:.0f} ms" for first, steps, whole in medians
    ]
    return f"| {n_requests} | {' | '.join(cells)} | {medians[0][0] / medians[1][0]:.2f} |"


def prompt(n_tokens: int, seed: tuple[int, ...], vocab_size: int) -> RenderedPrompt:
    """A system message and a user's, which no other prompt shares."""
    ids = np.random.default_rng(seed).integers(0, vocab_size - 100, n_tokens).astype(np.uint32)
    return RenderedPrompt(
        ids,
        message_starts=(0, N_SYSTEM, n_tokens - N_HEADER),
        message_roles=("system", "user", "assistant"),
        shared_points=(n_tokens - 1,),
        system_end=N_SYSTEM,
    )


def last_first(loop: Loop, prompts: list[RenderedPrompt], n_tokens: int) -> tuple[float, int, float]:
    """Seconds and engine steps until every request has its first token, and seconds until all are over."""
    firsts: dict[int, float] = {}

    def listen(i: int, event: Event) -> None:
        if isinstance(event, Progress | Finished):
            firsts.setdefault(i, time.perf_counter())

    started = time.perf_counter()
    for i, one in enumerate(prompts):
        request = GenerationRequest(
            id=f"arrival-{started}-{i}",
            slot=SlotKey.for_session(None, f"arrival-{started}-{i}"),
            prompt=one,
            max_tokens=n_tokens,
            sampling=SamplingParams(temperature=0.0),
        )
        loop.engine.submit(request, lambda event, i=i: listen(i, event))
    n_steps = 0
    while loop.engine.has_requests:
        n_steps += len(firsts) < len(prompts)
        loop.engine.step()
    return max(firsts.values()) - started, n_steps, time.perf_counter() - started


if __name__ == "__main__":
    main()
