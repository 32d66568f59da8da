"""FlightsAhead: lookups that are sent before their step, as many as the staleness lets."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridrec.server.served_group import ServedGroup
    from hybridrec.server.served_lookup import ServedFlight, ServedLookup


@dataclass(eq=False)
class _Coming:
    """A block that will be looked up at this step, or before it where a step has several lookups."""

    lookup: ServedLookup
    flight: Future[ServedFlight]
    step: int


class FlightsAhead:
    """Blocks in the order in which they were prepared; each is sent once its step is near enough."""

    def __init__(self, group: ServedGroup) -> None:
        self._group = group
        self._coming: deque[_Coming] = deque()
        self._lock = threading.RLock()

    def add(self, lookup: ServedLookup, flight: Future[ServedFlight], before: int) -> None:
        """One more block, with so many prepared before it that are still to be looked up."""
        with self._lock:
            self._coming.append(_Coming(lookup, flight, self._group.next_step + before))
        flight.add_done_callback(lambda _: self.send())

    def forget(self, lookup: ServedLookup) -> None:
        """Those of a lookup will not come."""
        with self._lock:
            self._coming = deque(each for each in self._coming if each.lookup is not lookup)

    def start(self, flight: ServedFlight, train: bool) -> None:
        """Send a block now, unless it is on its way already, for a lookup of this kind that is not too old."""
        with self._lock:
            sent = flight.sent
            if sent is None or sent.train != train or (train and sent.step < self._group.course.step):
                flight.sent = self._group.look(flight, train)

    def send(self) -> None:
        """Send what may be sent now, in order."""
        course = self._group.course
        with self._lock:
            while self._coming and self._coming[0].step <= course.step + course.staleness:
                if not self._coming[0].flight.done():
                    return  # it calls again when it is ready
                first = self._coming.popleft()
                if first.flight.exception() is None and first.flight.result().sent is None:
                    flight = first.flight.result()
                    flight.sent = course.look(flight.asked(), True, max(first.step, course.step))
