"""Ahead: ids of the next batch travel while this one is computed."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.parallel.rank_lookup import RankLookup

MOST = 64  # blocks that may wait for their lookup

Flights = deque[tuple[IdBlock, Future[Any]]]


class Ahead:
    """Flights that have begun before their lookup. Once there is one, a thread begins all of them, in the order in
    which they are asked for: that is the order of messages, and the same on all ranks if their programs are.

    Blocks are looked up in the order in which they were sent, each once; those that were not sent, at any time. What
    is on its way cannot be called back: `forget` lets it arrive for nobody.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._ids: dict[RankLookup, Flights] = {}  # those whose ids were sent, in their order
        self._vectors: dict[RankLookup, Flights] = {}  # those whose vectors are on their way already

    def begin(self, lookup: RankLookup, block: IdBlock, weight: float) -> Future[Any]:
        """Send the ids of a block whose lookup will follow; the flight, once it is known."""
        waiting = self._ids.setdefault(lookup, deque())
        if len(waiting) == MOST:
            raise RuntimeError(f"{MOST} batches were prepared, and {_named(waiting[0][0])} {_REMEDY}")
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="ids-ahead")
        flight = self._thread.submit(lookup.fly, lookup.ids_of(block), weight)
        waiting.append((block, flight))
        return flight

    def waiting(self, lookup: RankLookup) -> int:
        """How many blocks were sent that are still to be looked up."""
        return len(self._ids.get(lookup, ()))

    def keep(self, lookup: RankLookup, block: IdBlock, flight: Any) -> None:
        """A flight whose vectors are on their way already, until its lookup takes it."""
        done: Future[Any] = Future()
        done.set_result(flight)
        self._vectors.setdefault(lookup, deque()).append((block, done))

    def taken(self, lookup: RankLookup, block: IdBlock) -> Any:
        """The flight of this block, once ids are there; None where none was begun."""
        for flights in (self._vectors, self._ids):
            waiting = flights.get(lookup) or deque()
            at = next((place for place, (each, _) in enumerate(waiting) if each is block), None)
            if at is None:
                continue
            if at > 0 and flights is self._ids:
                raise RuntimeError(f"{_named(block)} is looked up, but {_named(waiting[0][0])} before it {_REMEDY}")
            _, flight = waiting[at]
            del waiting[at]
            return flight.result()
        return None

    def forget(self, lookup: RankLookup) -> None:
        """Nobody will look up what has begun."""
        self._ids.pop(lookup, None)
        self._vectors.pop(lookup, None)

    def now(self, lookup: RankLookup, ids: Any, weight: float) -> Any:
        """A flight that nobody has begun before, after those that were."""
        return (
            lookup.fly(ids, weight) if self._thread is None else self._thread.submit(lookup.fly, ids, weight).result()
        )


_REMEDY = (
    "was prepared and never looked up; look batches up in the order in which they were prepared, the very objects, or "
    "call forget() on the model that hybridrec.shard made, on all ranks"
)


def _named(block: IdBlock) -> str:
    names = [*block.names[:3], *(["…"] if len(block.names) > 3 else [])]
    return f"a batch of {block.batch_size} rows (ids of {', '.join(names)})"
