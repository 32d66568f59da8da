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
        key = id(lookup), block.values.data_ptr()
        self._flights[key] = block, self._thread.submit(lookup.fly, lookup.ids_of(block), weight)

    def taken(self, lookup: ShardedLookup, block: IdBlock) -> Flight | None:
        """The flight of this block, once ids are there; None where none was begun."""
        found = self._flights.pop((id(lookup), block.values.data_ptr()), None)
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
