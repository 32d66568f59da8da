"""IdsAhead: on several ranks, the ids of the next batch travel while this one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from hybridrec.train.placed import Placed
from hybridrec.types import Batch

Given = TypeVar("Given")


class _Next(NamedTuple):
    """A batch, or what came in its place (None at the end), and where the source stood after it."""

    found: Placed | BaseException | None
    state: Any


class IdsAhead(Iterator[Placed]):
    """The batches of an iterable, each one told to `prepare` a step before it comes.

    `place` makes a `Placed` of what the iterable gives. `state` is where the source stood after the batch that was last
    taken from here. An error of the source comes where its batch would have come.
    """

    def __init__(
        self,
        batches: Iterable[Given],
        place: Callable[[Given], Placed],
        prepare: Callable[[Batch, float], None],
        position: Callable[[], Any] | None = None,
    ) -> None:
        self._source = iter(batches)
        self._place, self._prepare, self._position = place, prepare, position
        self.state = None if position is None else position()
        self._next: _Next | None = None

    def __next__(self) -> Placed:
        now = self._next or self._read()
        if isinstance(now.found, Placed):
            self._next = self._read()
            self.state = now.state
            return now.found
        self._next = now
        raise StopIteration if now.found is None else now.found

    def _read(self) -> _Next:
        try:
            batch = next(self._source, None)
            placed = None if batch is None else self._place(batch)
        except BaseException as error:
            return _Next(error, None)
        if placed is not None:
            self._prepare(placed.batch, placed.weight)
        return _Next(placed, None if self._position is None else self._position())

    def close(self) -> None:
        """Read no further."""
        getattr(self._source, "close", lambda: None)()
