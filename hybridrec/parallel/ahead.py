"""Ahead: ids of the next batch travel while this one is computed."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.parallel.rank_lookup import RankLookup


class Ahead:
    """Flights that have begun before their lookup. Once there is one, a thread begins all of them, in the order in
    which they are asked for: that is the order of messages, and the same on all ranks if their programs are.

    Each must be looked up: what is on its way cannot be called back.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._flights: dict[tuple[int, int], deque[tuple[IdBlock, Future[Any]]]] = {}  # those of a block in their order

    def begin(self, lookup: RankLookup, block: IdBlock, weight: float) -> Future[Any]:
        """Send the ids of a block whose lookup will follow; the flight, once it is known."""
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="ids-ahead")
        flight = self._thread.submit(lookup.fly, lookup.ids_of(block), weight)
        self._of(lookup, block).append((block, flight))
        return flight

    def keep(self, lookup: RankLookup, block: IdBlock, flight: Any) -> None:
        """A flight whose vectors are on their way already, until its lookup takes it."""
        done: Future[Any] = Future()
        done.set_result(flight)
        self._of(lookup, block).appendleft((block, done))

    def taken(self, lookup: RankLookup, block: IdBlock) -> Any:
        """The flight of this block, once ids are there; None where none was begun."""
        key = id(lookup), id(block)
        waiting = self._flights.get(key)
        if not waiting:
            return None
        _, flight = waiting.popleft()
        if not waiting:
            del self._flights[key]
        return flight.result()

    def _of(self, lookup: RankLookup, block: IdBlock) -> deque[tuple[IdBlock, Future[Any]]]:
        return self._flights.setdefault((id(lookup), id(block)), deque())  # blocks are held, so ids are their own

    def now(self, lookup: RankLookup, ids: Any, weight: float) -> Any:
        """A flight that nobody has begun before, after those that were."""
        return (
            lookup.fly(ids, weight) if self._thread is None else self._thread.submit(lookup.fly, ids, weight).result()
        )
