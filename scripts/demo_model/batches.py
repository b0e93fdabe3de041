"""Feeds training from the shards on disk, and the held-out questions for the evaluation during training."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dataset import ROW
from mixture import HELD_OUT, held_out
from render import Encoder, render


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # [R, L]
    position: Tensor  # [R, L]
    where: Tensor  # flat positions whose next token is learnt
    targets: Tensor

    def to(self, device: torch.device) -> Batch:
        def move(t: Tensor) -> Tensor:
            return t.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else t

        return Batch(move(self.ids), move(self.position), move(self.where), move(self.targets))


def make_batch(ids: np.ndarray, position: np.ndarray, learn: np.ndarray) -> Batch:
    flat, target = ids.reshape(-1).astype(np.int64), np.flatnonzero(learn.reshape(-1))
    return Batch(
        torch.from_numpy(ids.astype(np.int64)),
        torch.from_numpy(position.astype(np.int64)),
        torch.from_numpy(target - 1),
        torch.from_numpy(flat[target]),
    )


def read_shards(folder: Path, rank: int, n_ranks: int, n_rows: int, ahead: int = 6) -> Iterator[Batch]:
    """Each shard once, those of worker i by rank i mod n_ranks; read ones are deleted."""
    ready: queue.Queue[Batch] = queue.Queue(ahead)

    def fill() -> None:
        while True:
            paths = [
                p
                for p in sorted(folder.glob("??-?????.npz"), key=lambda p: p.name[3:])
                if int(p.name[:2]) % n_ranks == rank
            ]
            for path in paths:
                with np.load(path) as shard:
                    arrays = [shard[key] for key in ("ids", "position", "learn")]
                path.unlink()
                for at in range(0, len(arrays[0]), n_rows):
                    ready.put(make_batch(*(a[at : at + n_rows] for a in arrays)))
            if not paths:
                time.sleep(0.02)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


@dataclass(frozen=True)
class Question:
    skill: str
    thinking: bool
    text: str
    where: np.ndarray  # indices into the batch's `where`


def questions(encoder: Encoder, n_each: int, n_rows: int) -> list[tuple[Batch, list[Question]]]:
    """Held-out conversations packed as batches; what counts is every assistant message of the last turn."""
    items: list[tuple[str, bool, str, np.ndarray, np.ndarray]] = []
    for skill in HELD_OUT:
        for thinking in (False, True):
            for seed in range(n_each):
                c = held_out(skill, seed, thinking)
                text = render(c.messages, c.tools)
                ids, learn = encoder([text])[0]
                opens = np.flatnonzero(learn & ~np.roll(learn, 1))
                learn[: opens[-1 - len(c.last.rounds)]] = False
                if len(ids) <= ROW:
                    items.append((skill, thinking, text, ids, learn))
    items.sort(key=lambda item: -len(item[3]))
    out: list[tuple[Batch, list[Question]]] = []
    while items:
        ids, position, learn = (
            np.zeros((n_rows, ROW), np.uint16),
            np.zeros((n_rows, ROW), np.uint16),
            np.zeros((n_rows, ROW), bool),
        )
        room, placed = [ROW] * n_rows, []
        left = []
        for item in items:
            r = next((r for r in range(n_rows) if room[r] >= len(item[3])), -1)
            if r < 0:
                left.append(item)
                continue
            at = ROW - room[r]
            here = slice(at, at + len(item[3]))
            ids[r, here], learn[r, here], position[r, here] = item[3], item[4], np.arange(len(item[3]))
            room[r] -= len(item[3])
            placed.append((item, r * ROW + at, r * ROW + at + len(item[3])))
        for r in range(n_rows):
            position[r, ROW - room[r] :] = np.arange(room[r])
        batch = make_batch(ids, position, learn)
        flat = batch.where.numpy() + 1
        asked = [
            Question(item[0], item[1], item[2], np.flatnonzero((flat >= low) & (flat < high)))
            for item, low, high in placed
        ]
        out.append((batch, asked))
        items = left
    return out
