"""The rows of a table in two tiers as they were at one moment, to be written to disk while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hybridrec.embedding.gpu.capture import ROWS, Settles
from hybridrec.embedding.store import RowData

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.tiered_store import TieredStore


class TieredCapture(Settles):
    """Reads rows wherever they are, chunk by chunk, until some are about to change or to move: the rest is copied then.

    The moment itself copies nothing. Reader and writer may be different threads.
    """

    def __init__(self, store: TieredStore) -> None:
        super().__init__(store.clock, store.rule, None, len(store))
        self._share, self._row_bytes = store.share, store.row_bytes
        self._store: TieredStore | None = store
        self._rest: dict[str, Tensor] = {}  # once settled: rows from the first on that was not read by then
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
            if self._store is not None:
                found = self._store.columns(torch.arange(first, last))
            else:
                assert self._rest, "this capture is closed"
                found = {name: values[first - self._begin : last - self._begin] for name, values in self._rest.items()}
            self._next = last
        return RowData(self._share.id_of(torch.arange(first, last)), found.pop(ROWS), found)

    def settle(self) -> None:
        with self._lock:
            if self._store is not None:
                self._rest = self._store.columns(torch.arange(self._next, self.most))
                self._begin, self._store = self._next, None

    def close(self) -> None:
        with self._lock:
            self._store, self._rest = None, {}
