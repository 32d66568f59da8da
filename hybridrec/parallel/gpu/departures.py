"""Departures: when ids of blocks that were begun ahead leave this rank.

Sizes travel as soon as they are known, by a thread (`ahead.py`). Ids go from card to card, and cards must send in the
same order on all ranks. So they leave where the program is: after a backward call has sent its gradients, or at their
own lookup.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any, Protocol


class Leaves(Protocol):
    """A flight whose sizes are known."""

    def depart(self) -> None:
        """Send the ids, unless they are on their way."""
        ...


class Departures:
    """Flights that have begun, in the order in which they did: that of all ranks."""

    def __init__(self) -> None:
        self._begun: deque[Future[Any]] = deque()

    def add(self, flight: Future[Any]) -> None:
        """A flight that begins."""
        self._begun.append(flight)

    def all(self) -> list[Any]:
        """All that have begun leave, once their sizes are known: those. One that failed tells its lookup."""
        left = []
        while self._begun:
            flight = self._begun.popleft()
            if flight.exception() is None:
                flight.result().depart()
                left.append(flight.result())
        return left

    def until(self, flight: Leaves) -> None:
        """This one leaves, and all that have begun before it."""
        if any(each.done() and each.exception() is None and each.result() is flight for each in self._begun):
            while self._begun:
                each = self._begun.popleft()
                if each.exception() is None:
                    each.result().depart()
                    if each.result() is flight:
                        return
        flight.depart()
