"""The rows of a dynamic table on a card as they were at one moment, to be written to disk while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from hybridrec.embedding.gpu.capture import Settles
from hybridrec.embedding.store import RowData

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.hash_store import DeviceHashStore


class HashCapture(Settles):
    """Reads rows from the card in the order of their slots, until some are about to change: the rest is copied then.

    The moment itself copies no rows. Reader and writer may be different threads.
    """

    def __init__(self, store: DeviceHashStore) -> None:
        self._slots = store.taken()  # on the CPU
        super().__init__(store.clock, store.rule, store.sketch(), len(self._slots))
        self._store: DeviceHashStore | None = store
        self._row_bytes = sum(values[:1].nbytes for values in (store.there, *store.states.values())) + 16
        self._rest: RowData | None = None  # once settled: rows from the first on that was not read by then
        self._begin = 0  # the row that the rest begins with
        self._next = 0  # the first row that was not read yet
        self._lock = threading.Lock()

    @property
    def host_bytes(self) -> int:
        return 0 if self._store is None else (self.most - self._next) * self._row_bytes

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        for first in range(0, max(self.most, 1), size):
            yield self._read(first, min(first + size, self.most))

    def _read(self, first: int, last: int) -> RowData:
        with self._lock:
            self._next = last
            if self._store is not None:
                return self._store.at(self._slots[first:last])
            assert self._rest is not None, "this capture is closed"
            return _part(self._rest, slice(first - self._begin, last - self._begin))

    def settle(self) -> None:
        with self._lock:
            if self._store is not None:
                self._rest = self._store.at(self._slots[self._next :])
                self._begin, self._store = self._next, None

    def close(self) -> None:
        with self._lock:
            self._store = self._rest = None


def _part(data: RowData, part: slice) -> RowData:
    def cut(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[part]

    state = {name: values[part] for name, values in data.state.items()}
    return RowData(data.ids[part], data.rows[part], state, cut(data.touched), cut(data.counts))
