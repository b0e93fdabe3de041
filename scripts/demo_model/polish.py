"""A short last pass on one CPU core: short conversations, lists and stories first among them.

The GPU run put made-up words among the listed ones, and the model's own lists and stories caught some of
them. This pass shows it those with real words only, between short conversations of everything else.

    python polish.py WEIGHTS... --out FOLDER --minutes 15
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

import facts
import smalltalk
from architecture import make_config, make_model, save_checkpoint
from batches import Batch, make_batch
from conversation import State
from dataset import DEMO
from forward import PackedForward
from lexicon import Lexicon
from mixture import Conversation, draw, finish, json_answer, talk, with_tools
from render import Encoder, render

N_ROWS, LENGTH = 2, 1024
RATE = 1.5e-4


def conversation(rng: Random, lexicon: Lexicon) -> Conversation:
    state, thinking = State(rng, lexicon), rng.random() < 0.5
    kind = rng.random()
    if kind < 0.45:
        act = smalltalk.short_list if kind < 0.18 else smalltalk.story if kind < 0.3 else facts.correct
        before = [draw(state) for _ in range(rng.choice((0, 0, 1, 2)))]
        while act is facts.correct and not state.attributes:
            before.append(facts.tell(state))
        turn = act(state)
        if turn is not None:
            return finish(state, [*before, turn], "", thinking)
    if kind < 0.66:
        return with_tools(state, 0, thinking)
    if kind < 0.73:
        return json_answer(state, thinking)
    return talk(state, rng.choice((0, 0, 100, 300)), thinking)


def batches(encoder: Encoder, seed: str) -> Iterator[Batch]:
    rng, lexicon = Random(seed), Lexicon("train")
    pending: list[tuple[np.ndarray, np.ndarray]] = []
    while True:
        ids, position = np.zeros((N_ROWS, LENGTH), np.uint16), np.zeros((N_ROWS, LENGTH), np.uint16)
        learn = np.zeros((N_ROWS, LENGTH), bool)
        for r in range(N_ROWS):
            at = 0
            while True:
                if not pending:
                    lexicon.refresh(rng)
                    drawn = [conversation(rng, lexicon) for _ in range(24)]
                    pending = [
                        p
                        for p in encoder([render(c.messages, c.tools) for c in drawn])
                        if len(p[0]) <= LENGTH
                    ]
                fits = next((i for i, p in enumerate(pending) if len(p[0]) <= LENGTH - at), None)
                if fits is None:
                    break
                tokens, mask = pending.pop(fits)
                here = slice(at, at + len(tokens))
                ids[r, here], learn[r, here], position[r, here] = tokens, mask, np.arange(len(tokens))
                at += len(tokens)
            position[r, at:] = np.arange(LENGTH - at)
        yield make_batch(ids, position, learn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    model = make_model(make_config({t: tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_end|>")}))
    for path in args.weights:
        model.load_state_dict(load_file(path), strict=False)
    forward = PackedForward(model, torch.float32)
    adam = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    began = last_save = time.monotonic()
    for step, batch in enumerate(batches(Encoder(tokenizer), "polish"), 1):
        progress = (time.monotonic() - began) / (60 * args.minutes)
        done = progress >= 1
        for group in adam.param_groups:
            group["lr"] = RATE * min(1.0, step / 15) * max(1.0 - progress, 0.0)
        loss = F.cross_entropy(forward.logits(batch.ids, batch.position, batch.where), batch.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
        adam.zero_grad()
        if step % 5 == 0:
            print(f"step {step} {time.monotonic() - began:.0f} s loss {loss.item():.4f}", flush=True)
        if done or time.monotonic() - last_save > 120:
            save_checkpoint(copy.deepcopy(model), args.out)
            last_save = time.monotonic()
        if done:
            return


if __name__ == "__main__":
    main()
