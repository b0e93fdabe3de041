"""Replays traces through the real planner, ring, store and eviction, with no model.

States are counted, not computed, so policies can be compared at a scale that no machine here has:

    python bench/replay.py agent-sessions.jsonl.gz --at-once 10 --sessions-worth 1 2 4 8

For each budget it prints, by policy, the re-read ratio (tokens fed / tokens of blocks that were in no
earlier prompt of the session), the share of prompt tokens reused, and the bytes held at most. Replies
are taken to come back changed: a turn goes on from the end of the last prompt, never from its reply.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from counted_state import QWEN_0_8B, CountedState, Weights
from sessions import BLOCK, Request, Session, read

from cache.boundaries import PromptShape
from cache.eviction import ChooseVictim, Victim, least_useful
from cache.planner import (
    AdapterId,
    CrossTurnPrefixMetadata,
    SlotKey,
    TokenIds,
    longest_common_token_prefix,
)
from cache.ring import RingLimits
from cache.selection import Choice
from cache.slots import Ledger, Slot
from cache.store import Store

METADATA = CrossTurnPrefixMetadata(
    model_fingerprint=0,
    tokenizer_fingerprint=0,
    adapter_id=AdapterId.BASE,
    vocab_size=1 << 32,
    max_cache_len=1 << 32,
    kv_dtype="bfloat16",
    rope_theta=0.0,
    partial_rotary_factor=None,
    layer_types=(),
    chat_template_version=0,
)


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to decide.

    Attributes:
        name: for the table.
        choose_victim: what goes when bytes are needed.
        marks: whether states are kept inside messages.
        boundaries: whether states are kept anywhere but at the end of a prompt.
    """

    name: str
    choose_victim: ChooseVictim
    marks: bool = True
    boundaries: bool = True


@dataclass(slots=True)
class Outcome:
    """What a replay did, in tokens and bytes."""

    n_prompt: int = 0
    n_fed: int = 0
    n_new: int = 0
    n_peak_bytes: int = 0
    n_evicted: int = 0

    @property
    def reread_ratio(self) -> float:
        return self.n_fed / self.n_new

    @property
    def reused_share(self) -> float:
        return 1 - self.n_fed / self.n_prompt


class TraceClock:
    """Stands where the trace stands, in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Player:
    """One session's client: knows which blocks it has sent, and where its messages begin."""

    def __init__(self, number: int, session: Session) -> None:
        self.slot = SlotKey.for_session(None, str(number))
        self.session = session
        self._seen: set[int] = set()
        self._last: TokenIds = np.zeros(0, dtype=np.uint32)
        self._starts: list[int] = []

    def shape(self, blocks: TokenIds) -> PromptShape:
        """A message begins where an earlier prompt ended, as far as this one agrees with it."""
        shared = BLOCK * longest_common_token_prefix(blocks, self._last)
        self._starts = [start for start in self._starts if start < shared] + [shared]
        self._last = blocks
        return PromptShape(
            message_starts=tuple(self._starts),
            shared_points=(BLOCK * len(blocks),),
            last_user_start=shared or None,
        )

    def n_unseen(self, blocks: TokenIds) -> int:
        """Tokens of the ``blocks`` that no earlier prompt had; from now on they are seen."""
        ids = set(blocks.tolist())
        n = len(ids - self._seen)
        self._seen |= ids
        return BLOCK * n


def longest_idle(slots: Iterable[Slot], _: Ledger, __: float) -> Victim | None:
    """Plain LRU: whole entries, the longest idle first."""
    oldest = min((e for slot in slots for e in slot), key=lambda entry: entry.used_at, default=None)
    return None if oldest is None else Victim(oldest, None, worth=0.0)


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("crossturn", least_useful),
        Policy("no marks inside messages", least_useful, marks=False),
        Policy("prompt ends only", least_useful, marks=False, boundaries=False),
        Policy("LRU", longest_idle),
        Policy("LRU, prompt ends only", longest_idle, marks=False, boundaries=False),
    )
}


def replay(
    sessions: list[Session], policy: Policy, *, budget_bytes: int, at_once: int, weights: Weights
) -> Outcome:
    """Play ``sessions``, ``at_once`` of them at a time, each by its own clock."""
    clock = TraceClock()
    store = Store(
        METADATA,
        budget_bytes=budget_bytes,
        ring_limits=RingLimits(),
        share_prefixes=False,
        clock=clock,
        new_state=lambda: CountedState(weights),
        choose_victim=policy.choose_victim,
    )
    outcome = Outcome()
    for now_s, player, number in _by_time(sessions, at_once):
        clock.now_s = now_s
        request = player.session[number]
        outcome.n_prompt += BLOCK * len(request.block_ids)
        outcome.n_new += player.n_unseen(request.block_ids)
        outcome.n_fed += _play(store, player, request, policy)
        outcome.n_peak_bytes = max(outcome.n_peak_bytes, store.n_bytes)
    outcome.n_evicted = store.counters.n_evicted_entries
    return outcome


def _by_time(sessions: list[Session], at_once: int) -> Iterator[tuple[float, Player, int]]:
    """Requests in order of time; a session that ends makes room for the next."""
    waiting = iter([Player(number, session) for number, session in enumerate(sessions)])
    due: list[tuple[float, int, float, Player, int]] = []
    for lane, player in zip(range(at_once), waiting, strict=False):
        heapq.heappush(due, (0.0, lane, 0.0, player, 0))
    while due:
        now_s, lane, began_s, player, number = heapq.heappop(due)
        yield now_s, player, number
        if number + 1 < len(player.session):
            next_s = began_s + player.session[number + 1].t_s
            heapq.heappush(due, (next_s, lane, began_s, player, number + 1))
        elif (successor := next(waiting, None)) is not None:
            heapq.heappush(due, (now_s, lane, now_s, successor, 0))


def _play(store: Store, player: Player, request: Request, policy: Policy) -> int:
    """One request; returns the tokens of the prompt that were fed."""
    ids = np.repeat(request.block_ids, BLOCK)
    choice = store.plan(player.slot, ids, player.shape(request.block_ids))
    running = store.take(choice)
    state = running.state
    assert isinstance(state, CountedState)
    rest = ids[len(running) :]
    state.feed(len(rest))
    running.ids.extend(rest)
    for position in _captures(choice, policy):
        running.capture(state.checkpoint_at(position))
    # A reply's ids are met nowhere else: the next prompt holds it rendered anew.
    state.feed(request.n_reply_tokens)
    running.ids.extend(np.full(request.n_reply_tokens, 0xFFFF_FFFF, dtype=np.uint32))
    store.save(running)
    return len(rest)


def _captures(choice: Choice, policy: Policy) -> Iterator[int]:
    shape = choice.shape
    ends = set(shape.shared_points)
    boundaries = ends | set(shape.message_starts) | {choice.parted_at}
    for position in choice.captures:
        if policy.marks or position in (boundaries if policy.boundaries else ends):
            yield position


def session_bytes(sessions: list[Session], weights: Weights) -> int:
    """What one session is worth: the mean of their longest prompts' states."""
    longest = [max(len(request.block_ids) for request in session) for session in sessions]
    mean_tokens = BLOCK * sum(longest) / len(longest)
    return int(mean_tokens * weights.row_bytes + weights.snapshot_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay a trace through the cache, without a model.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--at-once", type=int, default=10, help="sessions that run at a time")
    parser.add_argument("--sessions-worth", type=float, nargs="+", default=[1, 2, 4, 8], help="budgets")
    parser.add_argument("--policies", nargs="+", choices=sorted(POLICIES), default=list(POLICIES))
    options = parser.parse_args()
    sessions = read(options.trace)
    worth = session_bytes(sessions, QWEN_0_8B)
    n_tokens = BLOCK * sum(len(r.block_ids) for s in sessions for r in s)
    print(
        f"{len(sessions)} sessions, {sum(map(len, sessions))} requests, {n_tokens / 1e6:.1f} million tokens,"
    )
    print(f"{options.at_once} at once; a session's worth is {worth / 2**30:.2f} GiB\n")
    print("| budget | policy | re-read ratio | reused | peak GiB | evicted |")
    print("|---|---|---|---|---|---|")
    for n in options.sessions_worth:
        for policy in (POLICIES[name] for name in options.policies):
            got = replay(
                sessions, policy, budget_bytes=int(n * worth), at_once=options.at_once, weights=QWEN_0_8B
            )
            cells = f"{got.reread_ratio:.3f} | {got.reused_share:.1%} | {got.n_peak_bytes / 2**30:.2f}"
            print(f"| {n:g} | {policy.name} | {cells} | {got.n_evicted} |", flush=True)


if __name__ == "__main__":
    main()
