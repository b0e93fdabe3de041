"""Makes training rows: seeded conversations, encoded, several to a row, written as shards by parallel
processes.

    python dataset.py check                     compares render.py with the chat template
    python dataset.py tokenizer                 trains model/demo/tokenizer.json
    python dataset.py make OUT --workers 8      writes shards until OUT/stop appears; OUT/boost.json moves the
    mixture

A shard is an .npz of `ids` [R, L] uint16, `position` [R, L] uint16 (0 opens a conversation) and `learn` [R,
L] bool. Conversations that share a row share no state: training resets all of it where position is 0."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

import phrasing
from conversation import State
from lexicon import Lexicon
from mixture import ACTS, RAISED, Conversation, one, sample
from render import Encoder, render

DEMO = Path(__file__).parents[2] / "model" / "demo"
ROW = 4608  # 72 chunks of 64; a conversation is at most one row
ROWS_A_SHARD = 64
CONVERSATIONS_AT_ONCE = 256
SHARDS_AHEAD = 300  # workers wait while this many are unread


def conversations(seed: str, lexicon: Lexicon, act: str | None = None) -> Iterator[Conversation]:
    """The mixture, or conversations of one or two turns that end in ``act``."""
    rng = Random(seed)
    while True:
        if act is None:
            yield sample(rng, lexicon)
        else:
            yield one(ACTS[act], 1)(State(rng, lexicon), rng.random() < 0.5)


def _best_fit(lengths: list[int], n_rows: int) -> tuple[list[list[int]], list[int]]:
    """Rows of indices, longest first, and the indices left for the next shard."""
    rows: list[list[int]] = [[] for _ in range(n_rows)]
    room = [ROW] * n_rows
    left = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = min((r for r in range(n_rows) if room[r] >= lengths[i]), key=lambda r: room[r], default=-1)
        if row < 0:
            left.append(i)
        else:
            rows[row].append(i)
            room[row] -= lengths[i]
    return rows, left


def shards(
    seed: str, encoder: Encoder, lexicon: Lexicon, act: str | None = None
) -> Iterator[dict[str, np.ndarray]]:
    source, rng = conversations(seed, lexicon, act), Random(f"{seed}|words")
    pool: list[tuple[np.ndarray, np.ndarray]] = []
    while True:
        while sum(len(ids) for ids, _ in pool) < ROWS_A_SHARD * ROW * 1.02:
            if lexicon.pieces:
                lexicon.refresh(rng)
            drawn = [next(source) for _ in range(CONVERSATIONS_AT_ONCE)]
            pool += [
                pair for pair in encoder([render(c.messages, c.tools) for c in drawn]) if len(pair[0]) <= ROW
            ]
        rows, left = _best_fit([len(ids) for ids, _ in pool], ROWS_A_SHARD)
        out = {
            "ids": np.zeros((ROWS_A_SHARD, ROW), np.uint16),
            "position": np.zeros((ROWS_A_SHARD, ROW), np.uint16),
            "learn": np.zeros((ROWS_A_SHARD, ROW), bool),
        }
        for r, row in enumerate(rows):
            at = 0
            for i in row:
                ids, mask = pool[i]
                here = slice(at, at + len(ids))
                out["ids"][r, here], out["learn"][r, here] = ids, mask
                out["position"][r, here] = np.arange(len(ids))
                at += len(ids)
            out["position"][r, at:] = np.arange(ROW - at)
        pool = [pool[i] for i in left]
        yield out


def _work(folder: Path, seed: str, act: str | None, worker: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    phrasing.BOOST.update(RAISED)
    encoder = Encoder(Tokenizer.from_file(str(DEMO / "tokenizer.json")))
    for k, shard in enumerate(shards(f"{seed}|{worker}", encoder, Lexicon("train"), act)):
        path = folder / f"{worker:02}-{k:05}.npz"
        np.savez(path.with_suffix(".tmp"), **shard)
        Path(f"{path.with_suffix('.tmp')}.npz").rename(path)
        while len(list(folder.glob("*.npz"))) > SHARDS_AHEAD and not (folder / "stop").exists():
            time.sleep(0.5)
        if (folder / "stop").exists():
            return
        if (folder / "boost.json").exists():
            phrasing.BOOST.update(json.loads((folder / "boost.json").read_text()))


def make(folder: Path, seed: str, n_workers: int, act: str | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    workers = [multiprocessing.Process(target=_work, args=(folder, seed, act, i)) for i in range(n_workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def check(n: int) -> None:
    """render.py and the shipped template must agree to the byte, in both modes."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    encoder = Encoder(Tokenizer.from_file(str(DEMO / "tokenizer.json")))
    rng, lexicon = Random("check"), Lexicon("train")
    n_chars = n_tokens = n_learn = 0
    for _ in range(n):
        c = sample(rng, lexicon)
        kwargs = {} if c.thinking else {"enable_thinking": False}
        theirs = tokenizer.apply_chat_template(c.messages, tools=c.tools or None, tokenize=False, **kwargs)
        ours = render(c.messages, c.tools)
        assert ours == theirs, f"{ours}\n---\n{theirs}"
        ids, mask = encoder([ours])[0]
        assert ids.tolist() == tokenizer(theirs)["input_ids"]
        prompt = tokenizer.apply_chat_template(
            c.messages[: max(i for i, m in enumerate(c.messages) if m["role"] != "assistant") + 1],
            tools=c.tools or None,
            tokenize=False,
            add_generation_prompt=True,
            **kwargs,
        )
        n_prompt = len(tokenizer(prompt)["input_ids"])
        assert ids[:n_prompt].tolist() == tokenizer(prompt)["input_ids"], "the prompt's ids are a prefix"
        assert mask[n_prompt - 1 : n_prompt + 1].tolist() == [False, True], "learning starts behind it"
        n_chars, n_tokens, n_learn = n_chars + len(ours), n_tokens + len(ids), n_learn + int(mask.sum())
    print(f"{n} agree; {n_chars / n_tokens:.2f} characters a token, {n_learn / n_tokens:.0%} learnt")


def tokenizer() -> None:
    import train_tokenizer

    rng, lexicon = Random("tokenizer"), Lexicon("train")
    lexicon.pieces = []
    texts = [render(c.messages, c.tools) for c in (sample(rng, lexicon) for _ in range(12000))]
    texts += [" ".join(lexicon.made_up(rng) for _ in range(50)) for _ in range(400)]
    texts += [
        " ".join((*lexicon.plain, *lexicon.things, *lexicon.foods, *lexicon.animals)) for _ in range(10)
    ]
    for tag in (*train_tokenizer.SPECIAL, *train_tokenizer.NOT_SPECIAL):
        texts = [text.replace(tag, "\n") for text in texts]
    train_tokenizer.save(train_tokenizer.train(texts), DEMO)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("-n", type=int, default=500)
    commands.add_parser("tokenizer")
    maker = commands.add_parser("make")
    maker.add_argument("out", type=Path)
    maker.add_argument("--workers", type=int, default=14)
    maker.add_argument("--seed", default="0")
    maker.add_argument("--act", choices=ACTS, help="only conversations of one or two turns that end in this")
    args = parser.parse_args()
    if args.command == "check":
        check(args.n)
    elif args.command == "tokenizer":
        tokenizer()
    else:
        make(args.out, args.seed, args.workers, args.act)


if __name__ == "__main__":
    main()
