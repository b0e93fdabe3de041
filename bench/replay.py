"""Replays recorded sessions, or scenarios, through the real planner, ring, store and eviction, with no model.

States are counted, not computed, so policies can be compared at a scale that no machine here has:

    python bench/replay.py agent-sessions.jsonl.gz --at-once 10 --sessions-worth 0.25 0.5 1 2 4 8
    python bench/replay.py --geometry 35B-A3B

The first plays a trace (see ``sessions.py``), the second the scenarios of ``scenarios.py``. For each budget
it prints, by policy, the re-read ratio (tokens fed / tokens that were in no earlier prompt of the session),
and what a clairvoyant could do at best: one who knows all prompts to come, lets go first of the bytes that
are wanted last, and needs no states to go back to (Belady's rule over rows alone; nobody can feed less).
In a trace replies are taken to come back changed: a turn goes on from the end of the last prompt.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from clairvoyant import Wanted, least_fed
from counted_state import GEOMETRIES, CountedState, Weights
from scenarios import SCENARIOS, Ask
from sessions import BLOCK, Session, read

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
from cache.slots import Habits, Ledger, Slot
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
    """What a replay did, in tokens, bytes and seconds of planning, taking and saving.

    Attributes:
        n_new: tokens that were new, those read ahead included; ``n_asked`` without them.
    """

    n_prompt: int = 0
    n_fed: int = 0
    n_new: int = 0
    n_asked: int = 0
    n_peak_bytes: int = 0
    n_evicted: int = 0
    n_cut: int = 0
    cpu_s: float = 0.0

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
        self.name = str(number)
        self.session = session
        self._seen: set[int] = set()
        self._last: TokenIds = np.zeros(0, dtype=np.uint32)
        self._starts: list[int] = []

    def ask(self, number: int, now_s: float) -> Ask:
        """Request ``number`` of the session, which comes at ``now_s``."""
        request = self.session[number]
        blocks = request.block_ids
        shape = self._shape(blocks)
        # A reply's ids are met nowhere else: the next prompt holds it rendered anew.
        reply = np.full(request.n_reply_tokens, 0xFFFF_FFFF, dtype=np.uint32)
        return Ask(self.name, now_s, np.repeat(blocks, BLOCK), shape, reply, self._n_unseen(blocks))

    def _shape(self, blocks: TokenIds) -> PromptShape:
        """A message begins where an earlier prompt ended, as far as this one agrees with it."""
        shared = BLOCK * longest_common_token_prefix(blocks, self._last)
        self._starts = [start for start in self._starts if start < shared] + [shared]
        self._last = blocks
        return PromptShape(
            message_starts=tuple(self._starts),
            shared_points=(BLOCK * len(blocks),),
            last_user_start=shared or None,
        )

    def _n_unseen(self, blocks: TokenIds) -> int:
        """Tokens of the ``blocks`` that no earlier prompt had; from now on they are seen."""
        ids = set(blocks.tolist())
        n = len(ids - self._seen)
        self._seen |= ids
        return BLOCK * n


def longest_idle(slots: Iterable[Slot], _: Ledger, __: Habits, ___: float) -> Victim | None:
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


def replay(asks: Iterable[Ask], policy: Policy, *, budget_bytes: int, weights: Weights) -> Outcome:
    """Play ``asks`` through a fresh store."""
    clock = TraceClock()
    store = Store(
        METADATA,
        budget_bytes=budget_bytes,
        ring_limits=RingLimits(),
        share_prefixes=True,
        clock=clock,
        new_state=lambda: CountedState(weights),
        choose_victim=policy.choose_victim,
    )
    outcome = Outcome()
    for ask in asks:
        clock.now_s = ask.t_s
        began = time.process_time()
        n_fed = play(store, ask, policy)
        if n_fed is None:
            continue
        outcome.n_prompt += len(ask.ids)
        outcome.n_new += ask.n_new
        outcome.n_asked += 0 if ask.is_ahead else ask.n_new
        outcome.n_fed += n_fed
        outcome.cpu_s += time.process_time() - began
        outcome.n_peak_bytes = max(outcome.n_peak_bytes, store.n_bytes)
    outcome.n_evicted = store.counters.n_evicted_entries
    outcome.n_cut = store.counters.n_cut_entries
    return outcome


def play(store: Store, ask: Ask, policy: Policy = POLICIES["crossturn"]) -> int | None:
    """One request; returns the tokens of the prompt that were fed, None where a guess was not read."""
    choice = store.plan(SlotKey.for_session(None, ask.session), ask.ids, ask.shape, is_guess=ask.is_ahead)
    if not choice.is_affordable:
        return None
    running = store.take(choice)
    state = running.state
    assert isinstance(state, CountedState)
    rest = ask.ids[len(running) :]
    state.feed(len(rest))
    running.ids.extend(rest)
    for position in _captures(choice, policy):
        running.capture(state.checkpoint_at(position))
        store.enforce()
    state.feed(len(ask.reply))
    running.ids.extend(ask.reply)
    store.enforce()
    store.save(running)
    return len(rest)


def _captures(choice: Choice, policy: Policy) -> Iterator[int]:
    shape = choice.shape
    ends = set(shape.shared_points)
    boundaries = ends | set(shape.message_starts) | {choice.parted_at}
    for position in choice.captures:
        if policy.marks or position in (boundaries if policy.boundaries else ends):
            yield position


def recorded(sessions: list[Session], at_once: int) -> Iterator[Ask]:
    """Requests of ``sessions``, ``at_once`` of them at a time, each by its own clock, in order of time; a
    session that ends makes room for the next."""
    waiting = iter([Player(number, session) for number, session in enumerate(sessions)])
    due: list[tuple[float, int, float, Player, int]] = []
    for lane, player in zip(range(at_once), waiting, strict=False):
        heapq.heappush(due, (0.0, lane, 0.0, player, 0))
    while due:
        now_s, lane, began_s, player, number = heapq.heappop(due)
        yield player.ask(number, now_s)
        if number + 1 < len(player.session):
            next_s = began_s + player.session[number + 1].t_s
            heapq.heappush(due, (next_s, lane, began_s, player, number + 1))
        elif (successor := next(waiting, None)) is not None:
            heapq.heappush(due, (now_s, lane, now_s, successor, 0))


def wanted(asks: Iterable[Ask], unit: int) -> Iterator[Wanted]:
    """What a clairvoyant must know of ``asks``, in units of so many tokens. A reply whose ids come from
    nowhere comes back nowhere, and what nobody asked for need not be read."""
    for ask in asks:
        if not ask.is_ahead:
            is_lost = len(ask.reply) == 0 or ask.reply[0] == 0xFFFF_FFFF
            yield Wanted(ask.session, ask.ids[::unit].copy(), ask.reply[:0] if is_lost else ask.reply)


def worth_of(asks: Iterable[Ask], weights: Weights) -> int:
    """What one session is worth in bytes: the mean of their longest prompts' states."""
    longest: dict[str, int] = {}
    for ask in asks:
        longest[ask.session] = max(longest.get(ask.session, 0), len(ask.ids))
    return int(sum(longest.values()) / len(longest) * weights.row_bytes + weights.snapshot_bytes)


def table(
    name: str,
    asks: Callable[[], Iterable[Ask]],
    unit: int,
    weights: Weights,
    budgets: dict[str, int],
    policies: Iterable[Policy],
) -> None:
    """Print one row for each budget and policy."""
    bounds = list(wanted(asks(), unit))
    for label, budget_bytes in budgets.items():
        n_least = unit * least_fed(bounds, budget_bytes // (weights.row_bytes * unit))
        for policy in policies:
            got = replay(asks(), policy, budget_bytes=budget_bytes, weights=weights)
            print(
                f"| {name} | {label} | {policy.name} | {got.reread_ratio:.3f} | "
                f"{n_least / got.n_asked:.3f} | {got.n_fed - got.n_new:,} | {got.reused_share:.1%} | "
                f"{got.n_peak_bytes / 2**30:.2f} | {got.n_evicted} | {got.n_cut} | {got.cpu_s:.1f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Replay a trace or scenarios through the cache, without a model."
    )
    parser.add_argument("trace", type=Path, nargs="?", help="default: the scenarios")
    parser.add_argument("--at-once", type=int, default=10, help="sessions of the trace that run at a time")
    parser.add_argument("--sessions-worth", type=float, nargs="+", default=[0.25, 0.5, 1, 2, 4, 8])
    parser.add_argument("--gib", type=float, nargs="+", help="budgets in GiB instead")
    parser.add_argument("--geometry", choices=sorted(GEOMETRIES), default="0.8B")
    parser.add_argument("--policies", nargs="+", choices=sorted(POLICIES), default=["crossturn", "LRU"])
    options = parser.parse_args()
    weights = GEOMETRIES[options.geometry]
    policies = [POLICIES[name] for name in options.policies]
    print(
        "| what | budget | policy | ratio | clairvoyant | re-read | reused | peak GiB | evicted | cut | s |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")

    def budgets(asks: Iterable[Ask]) -> dict[str, int]:
        if options.gib:
            return {f"{n:g} GiB": int(n * 2**30) for n in options.gib}
        worth = worth_of(asks, weights)
        return {f"{n:g} ({n * worth / 2**30:.2f} GiB)": int(n * worth) for n in options.sessions_worth}

    if options.trace is not None:
        sessions = read(options.trace)
        table(
            options.trace.name,
            lambda: recorded(sessions, options.at_once),
            BLOCK,
            weights,
            budgets(recorded(sessions, options.at_once)),
            policies,
        )
        return
    for name, scenario in SCENARIOS.items():
        asks = scenario()
        table(name, lambda asks=asks: asks, 1, weights, budgets(asks), policies)  # type: ignore[misc]


if __name__ == "__main__":
    main()
