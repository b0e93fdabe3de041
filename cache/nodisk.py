"""The disk tier of a server that keeps nothing on disk: nothing is written, nothing is found."""

from __future__ import annotations

from cache.entry import Entry
from cache.manifest import Found
from cache.planner import CrossTurnSlotId, TokenIds
from cache.recalled import Recalled


class NoDisk:
    """Answers as a :class:`cache.disk.DiskTier` over an empty folder that stays empty."""

    is_behind = False

    def want(self, entry: Entry) -> None:
        """Nothing is written."""

    def withdraw(self, entry: Entry) -> None:
        """Nothing was being written."""

    def finish(self, entry: Entry) -> None:
        """Nothing is written."""

    def step(self) -> bool:
        """Nothing is left to write."""
        return False

    def forget(self, lineage: str) -> None:
        """Nothing is there."""

    def forget_slot(self, _slot: CrossTurnSlotId) -> int:
        """Nothing is there."""
        return 0

    def best(self, _slot: CrossTurnSlotId, _prompt_ids: TokenIds) -> Found | None:
        """Nothing is there."""
        return None

    def all_of(self, _slot: CrossTurnSlotId) -> tuple[Found, ...]:
        """Nothing is there."""
        return ()

    def n_bytes_of(self, _found: Found) -> int:
        """Nothing is ever found."""
        raise AssertionError("nothing was found here")

    def read(self, _found: Found) -> Recalled | None:
        """Nothing is ever found."""
        raise AssertionError("nothing was found here")

    def close(self) -> None:
        """Nothing is held."""
