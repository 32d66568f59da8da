"""Rows that their store must find, of dynamic tables and of those in tiers, as they were at one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from torch import Tensor

from hybridrec.embedding.gpu.capture import Settles
from hybridrec.embedding.store import RowData
from hybridrec.optim.rule import RowRule


class ReadCapture(Settles):
    """Reads rows through their store, until some are about to change or to move: the rest is copied then.

    `read(first, last)` gives those of numbers 0 … `most` - 1. The moment itself copies none. Reader and writer may be
    different threads.
    """

    def __init__(
        self,
        clock: int,
        rule: RowRule | None,
        most: int,
        read: Callable[[int, int], RowData],
        row_bytes: int,
        sketch: Tensor | None = None,
    ) -> None:
        super().__init__(clock, rule, sketch, most)
        self._read_now: Callable[[int, int], RowData] | None = read
        self._row_bytes = row_bytes
        self._rest: RowData | None = None  # once settled: rows from the first on that was not read by then
        self._begin = 0  # the row that the rest begins with
        self._next = 0  # the first row that was not read yet
        self._lock = threading.Lock()

    @property
    def host_bytes(self) -> int:
        return 0 if self._read_now is None else (self.most - self._next) * self._row_bytes

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        for first in range(0, max(self.most, 1), size):
            yield self._read(first, min(first + size, self.most))

    def _read(self, first: int, last: int) -> RowData:
        with self._lock:
            self._next = last
            if self._read_now is not None:
                return self._read_now(first, last)
            assert self._rest is not None, "this capture is closed"
            return _part(self._rest, slice(first - self._begin, last - self._begin))

    def settle(self) -> None:
        with self._lock:
            if self._read_now is not None:
                self._rest = self._read_now(self._next, self.most)
                self._begin, self._read_now = self._next, None

    def close(self) -> None:
        with self._lock:
            self._read_now = self._rest = None


def _part(data: RowData, part: slice) -> RowData:
    def cut(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[part]

    state = {name: values[part] for name, values in data.state.items()}
    return RowData(data.ids[part], data.rows[part], state, cut(data.touched), cut(data.counts))
