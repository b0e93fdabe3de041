"""Traces of sessions: one JSON object a line, one line a request, Mooncake-style.

``session``, ``t`` (seconds since the session began), ``in`` and ``out`` (tokens), ``hash_ids`` (one for
each :data:`BLOCK` tokens of the prompt; equal ids stand for equal blocks within one session).

Run as a script it writes sessions of the shape that recorded coding agents have: 25 turns and 110,000
prompt tokens at the median, some 1,000 new tokens a turn, hardly ever a rollback, but then a deep one.

    python bench/sessions.py --sessions 1000 --seed 1 > sessions.jsonl
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path

import numpy as np

from cache.planner import TokenIds

BLOCK = 64
"""Tokens that one hash stands for."""

MAX_BLOCKS = 1 << 20
"""Distinct blocks of a session, so that the ids of different sessions never meet."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a session.

    Attributes:
        t_s: when it comes, in seconds since its session began.
        block_ids: uint32 [n], the prompt's blocks, full ones only.
        n_reply_tokens: length of the reply.
    """

    t_s: float
    block_ids: TokenIds
    n_reply_tokens: int


Session = list[Request]


def read(path: Path) -> list[Session]:
    """All sessions of a trace file, ``.gz`` or plain, in the order of the file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        [_request(row, number) for row in rows_of_session]
        for number, (_, rows_of_session) in enumerate(groupby(rows, key=lambda row: row["session"]))
    ]


def _request(row: dict[str, object], number: int) -> Request:
    ids, t, n_out = row["hash_ids"], row["t"], row["out"]
    assert isinstance(ids, list)
    assert isinstance(t, int | float)
    assert isinstance(n_out, int)
    assert max(ids, default=0) < MAX_BLOCKS
    blocks = np.array(ids, dtype=np.uint32) + np.uint32(number * MAX_BLOCKS)
    return Request(float(t), blocks, n_out)


def generate(n_sessions: int, seed: int) -> Iterator[dict[str, object]]:
    """Rows of ``n_sessions`` made-up sessions."""
    chance = random.Random(seed)
    for number in range(n_sessions):
        yield from _session_rows(f"made_{number:04d}", chance)


def _session_rows(name: str, chance: random.Random) -> Iterator[dict[str, object]]:
    new_id = count(1)
    system = [next(new_id) for _ in range(_blocks(chance, 14_000, 0.3))]
    blocks, t = list(system), 0.0
    for _ in range(max(1, round(chance.lognormvariate(math.log(25), 1.0)))):
        if chance.random() < 0.004:  # the client compacts the conversation: nothing but the system stays
            blocks = list(system)
        elif chance.random() < 0.014:  # an edit, most of them near the end
            del blocks[max(len(system), len(blocks) - _blocks(chance, 200, 2.0)) :]
        blocks += [next(new_id) for _ in range(_blocks(chance, 985, 1.6))]
        n_out = max(1, round(chance.lognormvariate(math.log(150), 1.0)))
        yield {
            "session": name,
            "t": round(t, 1),
            "in": len(blocks) * BLOCK,
            "out": n_out,
            "hash_ids": list(blocks),
        }
        t += n_out / 50 + chance.lognormvariate(math.log(15), 1.3)


def _blocks(chance: random.Random, median_tokens: float, sigma: float) -> int:
    """A log-normal number of tokens, in blocks; 40,000 tokens at most."""
    return max(1, round(min(chance.lognormvariate(math.log(median_tokens), sigma), 40_000) / BLOCK))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write made-up agent sessions as JSON lines.")
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for row in generate(options.sessions, options.seed):
        print(json.dumps(row, separators=(",", ":")))


if __name__ == "__main__":
    main()
