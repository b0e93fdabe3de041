"""Trains the demo model with torch on one or more GPUs, by the clock.

    python dataset.py make /dev/shm/rows --workers 8 &
    torchrun --nproc-per-node 2 train.py --rows /dev/shm/rows --out /tmp/run --minutes 17

The learning rates follow the share of the planned minutes that has passed: warm-up, constant, then linearly
to zero. The run saves its state every two minutes and continues from it when started again with the same
--out."""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from architecture import make_config, make_model, save_checkpoint
from batches import Batch, Question, questions, read_shards
from dataset import DEMO
from forward import Attend, PackedForward, attend_flash, attend_masked
from render import Encoder

MUON_RATE, ADAM_RATE = 0.02, 3e-3


def pick_attention(device: torch.device) -> Attend:
    """Flash attention if it agrees with the masked reference, forward and backward, on this machine."""
    if device.type != "cuda":
        return attend_masked
    model = PackedForward(
        make_model(make_config({"<|endoftext|>": 0, "<|im_end|>": 1})).to(device), torch.bfloat16
    )
    position = torch.stack(
        [torch.cat([torch.arange(100), torch.arange(284)]), torch.cat([torch.arange(384)])]
    ).to(device)
    rows = model.rows(position)
    q, k, v = (
        torch.randn(768, n, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for n in (4, 2, 2)
    )
    weight = torch.randn(768, 4, 64, device=device, dtype=torch.bfloat16)
    results = []
    for attend in (attend_masked, attend_flash):
        try:
            out = attend(q, k, v, rows)
            results.append((out, *torch.autograd.grad((out * weight).sum(), (q, k, v))))
        except RuntimeError as error:
            print(f"flash attention refused: {error}", flush=True)
            return attend_masked
    errors = [
        float(((a.float() - b.float()).norm() / a.float().norm()).detach())
        for a, b in zip(*results, strict=True)
    ]
    print("flash attention against the masked one:", [f"{e:.1e}" for e in errors], flush=True)
    return attend_flash if max(errors) < 2e-2 else attend_masked


def rate_at(progress: float, peak: float, hold: float) -> float:
    """Warm-up for 2%, at ``peak`` up to ``hold`` of the time, then linearly to zero."""
    return peak * min(progress / 0.02, 1.0, max(1.0 - progress, 0.0) / (1.0 - hold))


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank, self.n_ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        cuda = torch.cuda.is_available()
        self.device = (
            torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
        )
        if cuda:
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = True
        if self.n_ranks > 1:
            dist.init_process_group("nccl" if cuda else "gloo")
        self.tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        token_ids = {t: self.tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_end|>")}
        self.model = make_model(make_config(token_ids), seed=args.seed).to(self.device)
        attend = pick_attention(self.device)
        self.forward = PackedForward(
            self.model, torch.bfloat16 if cuda else torch.float32, attend, compiled=args.compile
        )
        named = [(n, p) for n, p in self.model.named_parameters()]
        matrices = [
            p
            for n, p in named
            if p.ndim == 2 and not n.endswith(("embed_tokens.weight", "in_proj_a.weight", "in_proj_b.weight"))
        ]
        chosen = {id(p) for p in matrices}
        self.others = [p for _, p in named if id(p) not in chosen]
        self.parameters = [p for _, p in named]
        self.muon = torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.1, momentum=0.95)
        self.adam = torch.optim.AdamW(
            self.others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=cuda
        )
        self.elapsed, self.step, self.n_tokens = 0.0, 0, 0
        if args.init:
            self.model.load_state_dict(load_file(args.init, device=str(self.device)), strict=False)
        self.state_path: Path = args.out / "state.pt"
        if self.state_path.exists():
            self.load()

    def load(self) -> None:
        state = torch.load(self.state_path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.load_state_dict(state["muon"])
        self.elapsed, self.step, self.n_tokens = state["elapsed"], state["step"], state["n_tokens"]
        print(f"continued at step {self.step}, {self.elapsed:.0f} s", flush=True)

    def save(self) -> None:
        """Everything to continue from, and the checkpoint as it would ship beside the one before it. Written
        aside and renamed."""
        state = {
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.state_dict(),
            "elapsed": self.elapsed,
            "step": self.step,
            "n_tokens": self.n_tokens,
        }
        torch.save(state, self.state_path.with_suffix(".tmp"))
        self.state_path.with_suffix(".tmp").rename(self.state_path)
        save_checkpoint(copy.deepcopy(self.model).cpu(), self.args.out / "new")
        last = self.args.out / "model.safetensors"
        if last.exists():
            last.rename(self.args.out / "before.safetensors")
        (self.args.out / "new" / "model.safetensors").rename(last)

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.forward.logits(batch.ids, batch.position, batch.where), batch.targets)

    def reduce(self, progress: float) -> float:
        """Averages the gradients over the ranks; the clock travels along, so that all ranks agree on the
        rates."""
        if self.n_ranks == 1:
            return progress
        flat = torch.cat(
            [*(p.grad.reshape(-1) for p in self.parameters), torch.tensor([progress], device=self.device)]
        )
        dist.all_reduce(flat)
        flat /= self.n_ranks
        at = 0
        for p in self.parameters:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        return float(flat[-1])

    def train(self) -> None:
        args = self.args
        seconds = args.minutes * 60
        source = read_shards(args.rows, self.rank, self.n_ranks, args.batch_rows)
        asked: list[tuple[Batch, list[Question]]] = []
        if self.rank == 0 and args.questions:
            asked = questions(Encoder(self.tokenizer), args.questions, args.batch_rows)
        self.loss(next(source).to(self.device)).backward()  # compiles; the clock starts behind it
        for p in self.parameters:
            p.grad = None
        if self.rank == 0:
            print("compiled", flush=True)
            self.evaluate(asked)
        if self.n_ranks > 1:
            dist.barrier()
        last_save = last_log = time.monotonic()
        began, before, tokens_before = time.monotonic(), self.elapsed, self.n_tokens
        running = torch.zeros((), device=self.device)
        n_running, done = 0, False
        while not done:
            batch = next(source).to(self.device)
            loss = self.loss(batch)
            loss.backward()
            self.elapsed = before + time.monotonic() - began
            progress = self.reduce(self.elapsed / seconds)
            done = progress >= 1.0 or self.step + 1 >= args.steps
            rate = rate_at(progress, args.peak, args.hold) * min(1.0, (self.step + 1) / 100)
            torch.nn.utils.clip_grad_norm_(self.others, 1.0)
            for optimizer, own_rate in ((self.muon, MUON_RATE), (self.adam, ADAM_RATE)):
                for group in optimizer.param_groups:
                    group["lr"] = own_rate * rate
                optimizer.step()
            for p in self.parameters:
                p.grad = None
            self.step += 1
            self.n_tokens += batch.ids.numel() * self.n_ranks
            running += loss.detach()
            n_running += 1
            now = time.monotonic()
            if self.step % args.log_every == 0 or done:
                mean = float(running) / n_running
                if self.rank == 0:
                    print(
                        f"step {self.step} {self.elapsed:.0f} s loss {mean:.4f} rate {rate:.3f} "
                        f"{(self.n_tokens - tokens_before) / (now - began) / 1e3:.0f}k tok/s "
                        f"{len(list(args.rows.glob('*.npz')))} shards ahead, "
                        f"{(now - last_log) / n_running * 1e3:.0f} ms a step",
                        flush=True,
                    )
                running.zero_()
                n_running, last_log = 0, now
            if self.rank == 0 and (now - last_save > args.save_every or done):
                self.evaluate(asked)
                self.save()
                last_save = last_log = time.monotonic()
        if self.n_ranks > 1:
            dist.barrier()
            dist.destroy_process_group()

    def evaluate(self, asked: list[tuple[Batch, list[Question]]]) -> None:
        """Held-out questions, exact when every token of the last turn is the likeliest one: what greedy
        decoding writes. Gradients stay on, so that the compiled code is the training's own."""
        right: dict[tuple[str, bool], list[bool]] = defaultdict(list)
        wrong: dict[str, list[str]] = defaultdict(list)
        for batch, group in asked:
            batch = batch.to(self.device)
            best = self.forward.logits(batch.ids, batch.position, batch.where).argmax(-1)
            hit = (best == batch.targets).cpu().numpy()
            for question in group:
                ok = bool(hit[question.where].all())
                right[question.skill, question.thinking].append(ok)
                if not ok and len(wrong[question.skill]) < 6:
                    said = self.tokenizer.decode(
                        best.cpu().numpy()[question.where].tolist(), skip_special_tokens=False
                    )
                    wrong[question.skill].append(f"{question.text[-600:]}\n>>> {said}")
        for skill in dict.fromkeys(skill for skill, _ in right):
            plain, thought = (sum(right[skill, t]) / max(len(right[skill, t]), 1) for t in (False, True))
            print(f"   {skill:40s} {plain:6.1%} {thought:6.1%}", flush=True)
        if asked:
            (self.args.out / "wrong.txt").write_text(
                "\n\n".join(f"##### {k}\n{w}" for k, ws in wrong.items() for w in ws)
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="where dataset.py writes its shards")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--init", type=Path, help="model.safetensors to start from, without optimiser state")
    parser.add_argument("--minutes", type=float, default=17.0)
    parser.add_argument("--peak", type=float, default=1.0, help="highest rate, of those in the source")
    parser.add_argument("--hold", type=float, default=0.4, help="part of the time before the rate falls")
    parser.add_argument(
        "--steps", type=int, default=10**9, help="stop after so many, whatever the clock says"
    )
    parser.add_argument("--batch-rows", type=int, default=32, help="rows of 4,608 tokens a step and GPU")
    parser.add_argument("--questions", type=int, default=48, help="held-out questions a skill and mode")
    parser.add_argument("--save-every", type=float, default=120.0, help="seconds")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    Trainer(args).train()


if __name__ == "__main__":
    main()
