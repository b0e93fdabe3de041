"""Counts the bytes of the entries at rest, exactly, and of each checkpoint once.

Forks within a slot share the checkpoints before the point they part at, so bytes are counted by
object: the last holder's departure frees them.
"""

from __future__ import annotations

from collections.abc import Iterable

from cache.entry import Conversation, Entry
from cache.state import Checkpoint


class Ledger:
    """Bytes held by entries at rest."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._holders: dict[int, int] = {}

    def add(self, entry: Entry) -> None:
        """Count ``entry`` with its ring."""
        self.n_bytes += entry.n_own_bytes
        for checkpoint in entry.ring.checkpoints:
            self.hold(checkpoint)

    def remove(self, entry: Entry) -> None:
        """Stop counting ``entry`` with its ring."""
        self.n_bytes -= entry.n_own_bytes
        for checkpoint in entry.ring.checkpoints:
            self.release(checkpoint)

    def hold(self, checkpoint: Checkpoint) -> None:
        """Count one more holder of ``checkpoint``."""
        holders = self._holders.get(id(checkpoint), 0)
        self._holders[id(checkpoint)] = holders + 1
        if holders == 0:
            self.n_bytes += checkpoint.n_bytes

    def release(self, checkpoint: Checkpoint) -> None:
        """Count one holder of ``checkpoint`` less."""
        holders = self._holders.pop(id(checkpoint)) - 1
        if holders > 0:
            self._holders[id(checkpoint)] = holders
        else:
            self.n_bytes -= checkpoint.n_bytes

    def freed_by(self, checkpoint: Checkpoint, *, is_counted: bool = True) -> int:
        """Bytes that one holder less of ``checkpoint`` would free.

        Args:
            is_counted: whether that holder is one of the entries counted here.
        """
        others = self._holders.get(id(checkpoint), 0) - is_counted
        return 0 if others > 0 else checkpoint.n_bytes

    def beyond(self, conversations: Iterable[Conversation]) -> int:
        """Bytes of the rings of ``conversations`` (not at rest) that are not counted here."""
        seen: dict[int, int] = {}
        for conversation in conversations:
            for checkpoint in conversation.ring.checkpoints:
                if id(checkpoint) not in self._holders:
                    seen[id(checkpoint)] = checkpoint.n_bytes
        return sum(seen.values())
