"""IdsAhead: on several ranks, or with servers, the ids of the next batches travel while this one is computed."""

from __future__ import annotations

from collections import deque
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
    """The batches of an iterable, each one told to `prepare` so many steps before it comes.

    `place` makes a `Placed` of what the iterable gives. `state` is where the source stood after the batch that was last
    taken from here. An error of the source comes where its batch would have come. `forget` is called in the end: a
    batch that was prepared may never come.
    """

    def __init__(
        self,
        batches: Iterable[Given],
        place: Callable[[Given], Placed],
        prepare: Callable[[Batch, float], None],
        forget: Callable[[], None],
        position: Callable[[], Any] | None = None,
        steps: int = 1,
    ) -> None:
        self._source = iter(batches)
        self._place, self._prepare, self._forget, self._position = place, prepare, forget, position
        self.state = None if position is None else position()
        self._steps = steps
        self._coming: deque[_Next] = deque()

    def __next__(self) -> Placed:
        while len(self._coming) <= self._steps and not self._ended():
            self._coming.append(self._read())
        now = self._coming[0].found
        if isinstance(now, Placed):
            self.state = self._coming.popleft().state
            return now
        raise StopIteration if now is None else now

    def _ended(self) -> bool:
        """Whether the source has nothing more to give."""
        return bool(self._coming) and not isinstance(self._coming[-1].found, Placed)

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
        self._forget()
