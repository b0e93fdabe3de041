"""What nobody can beat: prompts fed by one who knows all that will be asked.

Belady's rule over rows of KV alone: of what is held, that goes first which is wanted last, a token at a time.
No state has to be held to go back to, and a prefix may be held without what comes before it, so no cache of
this kind can feed less.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cache.planner import TokenIds, longest_common_token_prefix

NEVER = 1 << 60


@dataclass(eq=False)
class Node:
    """A run of units that several prompts have in common, or one alone.

    Attributes:
        ids: of its units.
        uses: numbers of the requests that need it, ascending.
        n_held: units that are in memory.
        next_use: the first of its uses still to come.
    """

    ids: TokenIds
    children: dict[int, Node] = field(default_factory=dict)
    uses: list[int] = field(default_factory=list)
    n_held: int = 0
    next_use: int = NEVER

    def split(self, n: int) -> None:
        """Keep the first ``n`` ids; the others become its one child."""
        rest = Node(self.ids[n:], self.children)
        self.ids, self.children = self.ids[:n], {int(rest.ids[0]): rest}

    def cut_out(self, ids: TokenIds) -> None:
        """Make a path for ``ids`` that ends where they end."""
        node = self
        while len(ids):
            child = node.children.get(int(ids[0]))
            if child is None:
                node.children[int(ids[0])] = Node(ids)
                return
            shared = longest_common_token_prefix(child.ids, ids)
            if shared < len(child.ids):
                child.split(shared)
            node, ids = child, ids[shared:]

    def path(self, ids: TokenIds) -> list[Node]:
        """The nodes that make up ``ids``, for which a path was cut out before."""
        node, found = self, []
        while len(ids):
            node = node.children[int(ids[0])]
            found.append(node)
            ids = ids[len(node.ids) :]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """One request: units of its prompt, and those that its reply adds behind them."""

    session: str
    prompt: TokenIds
    reply: TokenIds


def least_fed(requests: Iterable[Wanted], capacity: int) -> int:
    """Units fed at least, over all ``requests`` in order.

    Args:
        capacity: units that may be held between two requests, or as many as the last one had.
    """
    known = list(requests)
    roots: dict[str, Node] = {}
    for wanted in known:
        root = roots.setdefault(wanted.session, Node(np.zeros(0, dtype=np.uint32)))
        root.cut_out(wanted.prompt)
        root.cut_out(np.concatenate([wanted.prompt, wanted.reply]))
    paths = []
    for number, wanted in enumerate(known):
        path = roots[wanted.session].path(np.concatenate([wanted.prompt, wanted.reply]))
        for node in path:
            node.uses.append(number)
        paths.append(path)
    return sum(_play(known, paths, capacity))


def _play(known: list[Wanted], paths: list[list[Node]], capacity: int) -> Iterable[int]:
    n_held, furthest = 0, list[tuple[int, int, Node]]()
    for wanted, path in zip(known, paths, strict=True):
        n_prompt = n_fed = 0
        for node in path:
            if n_prompt < len(wanted.prompt):
                n_fed += len(node.ids) - node.n_held
                n_prompt += len(node.ids)
            n_held += len(node.ids) - node.n_held
            node.n_held = len(node.ids)
            node.uses.pop(0)
            node.next_use = node.uses[0] if node.uses else NEVER
            heapq.heappush(furthest, (-node.next_use, id(node), node))
        yield max(1, n_fed)
        allowed = max(capacity, len(wanted.prompt) + len(wanted.reply))
        while n_held > allowed or (furthest and furthest[0][0] == -NEVER):
            use, _, node = heapq.heappop(furthest)
            if -use != node.next_use or node.n_held == 0:
                continue  # used again since it was put there, or gone
            n_gone = node.n_held if -use == NEVER else min(node.n_held, n_held - allowed)
            node.n_held -= n_gone
            n_held -= n_gone
            if node.n_held:
                heapq.heappush(furthest, (use, id(node), node))
