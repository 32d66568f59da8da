"""Ahead: ids of the next batch travel while this one is computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.parallel.sharded_lookup import Flight, ShardedLookup


class Ahead:
    """Flights that have begun before their lookup; a thread begins them in the order in which they are asked for.

    The order must be the same on all ranks, and each must be looked up: what is on its way cannot be called back.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._flights: dict[tuple[int, int], tuple[IdBlock, Future[Any]]] = {}

    def begin(self, lookup: ShardedLookup, block: IdBlock, weight: float | None) -> None:
        """Send the ids of a block whose lookup will follow."""
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="ids-ahead")
        self._flights[_key(lookup, block)] = block, self._thread.submit(lookup.fly, lookup.ids_of(block), weight)

    def keep(self, lookup: ShardedLookup, block: IdBlock, flight: Flight) -> None:
        """A flight whose vectors are on their way already, until its lookup takes it."""
        done: Future[Any] = Future()
        done.set_result(flight)
        self._flights[_key(lookup, block)] = block, done

    def taken(self, lookup: ShardedLookup, block: IdBlock) -> Flight | None:
        """The flight of this block, once ids are there; None where none was begun."""
        found = self._flights.pop(_key(lookup, block), None)
        return None if found is None else found[1].result()

    def settle(self) -> None:
        """Wait until no ids are on their way."""
        for _, flight in self._flights.values():
            flight.exception()

    def close(self) -> None:
        self.settle()
        self._flights.clear()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def _key(lookup: ShardedLookup, block: IdBlock) -> tuple[int, int]:
    return id(lookup), block.values.data_ptr()
