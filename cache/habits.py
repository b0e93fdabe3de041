"""Learns how prompts use what is remembered: how often they go back, to which kind of place, and how often
memory ran short. Pure counting; nothing is known in advance but a little doubt."""

from __future__ import annotations

from collections import Counter
from enum import Enum

from cache.planner import SlotKey


class Place(Enum):
    """What a position of a conversation is, for whoever may go back there."""

    NEXT = "where the next turn is expected to leave it"
    QUESTION = "the start of a user's message, which may be edited"
    MESSAGE = "the start of another message"
    SYSTEM = "within the system and tools block"
    INSIDE = "inside a message, or none is known"


_DOUBT = {Place.QUESTION: 3.0, Place.MESSAGE: 1.0, Place.SYSTEM: 1.0, Place.INSIDE: 1.0}
"""Returns taken for seen before the first one, by place: people edit what they said."""

_DOUBT_RATE, _DOUBT_REQUESTS = 0.05, 20.0
"""The share of requests that go back, and how many requests that belief weighs as much as."""

_SLOT_DOUBT_REQUESTS = 10.0
"""How many requests of a slot its own share needs to weigh as much as everybody's."""

_SHORTAGE, _NEARING = 0.1, 0.3
"""How likely a conversation will have to be cut, as long as nothing is known, and how much that nears
certainty each time one is."""

_FADING = 0.9
"""How much of that likelihood a request leaves that went by without."""

MAX_SLOTS = 10_000
"""Slots whose habits are remembered; beyond, all begin anew."""


class Habits:
    """What was seen so far. Rates are probabilities for one request."""

    def __init__(self) -> None:
        self._n_requests = 0
        self._n_returns = 0
        self._n_next = 0
        self._by_place: Counter[Place] = Counter()
        self._of_slot: dict[SlotKey, list[int]] = {}
        self.shortage = _SHORTAGE

    def saw(self, slot: SlotKey, place: Place | None) -> None:
        """A prompt of ``slot`` left its conversation at ``place``; None where it went on from the end."""
        self._n_requests += 1
        self._n_next += place is Place.NEXT
        if len(self._of_slot) >= MAX_SLOTS:
            self._of_slot.clear()
        counts = self._of_slot.setdefault(slot, [0, 0])
        counts[0] += 1
        if place is not None and place is not Place.NEXT:
            self._n_returns += 1
            self._by_place[place] += 1
            counts[1] += 1
        self.shortage *= _FADING

    def ran_short(self) -> None:
        """A conversation had to be cut for want of memory."""
        self.shortage += (1 - self.shortage) * _NEARING

    def is_short(self) -> None:
        """What runs is larger than what may rest: it will be cut."""
        self.shortage = 1.0

    @property
    def next_rate(self) -> float:
        """Share of prompts that leave their conversation where the next turn was expected to."""
        return (self._n_next + 5.0) / (self._n_requests + 10.0)

    def return_rate(self, slot: SlotKey, place: Place) -> float:
        """Share of prompts of ``slot`` that go back to some place of this kind."""
        everybody = (self._n_returns + _DOUBT_RATE * _DOUBT_REQUESTS) / (self._n_requests + _DOUBT_REQUESTS)
        n, n_back = self._of_slot.get(slot, (0, 0))
        rate = (n_back + everybody * _SLOT_DOUBT_REQUESTS) / (n + _SLOT_DOUBT_REQUESTS)
        share = (self._by_place[place] + _DOUBT[place]) / (self._n_returns + sum(_DOUBT.values()))
        return rate * share
