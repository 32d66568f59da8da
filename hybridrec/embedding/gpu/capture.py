"""The rows of a table on a card as they were at one moment, to be written to disk while training goes on."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hybridrec.embedding.gpu.transfer import to_host
from hybridrec.embedding.store import Capture, RowData

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.store import DeviceStore

ROWS = "rows"


class Settles(Capture):
    """One that reads from a card until its rows are about to change."""

    @abstractmethod
    def settle(self) -> None:
        """Copy what was not read yet to the host; the table may change afterwards."""


class DeviceCapture(Settles):
    """Reads a table from the card, chunk by chunk, until somebody wants to change it: the rest then goes to the host.

    The moment itself copies nothing. Whoever changes rows or state calls `settle` first, which waits until all that was
    not read yet is in memory of the host. Reader and writer may be different threads.
    """

    def __init__(self, store: DeviceStore) -> None:
        super().__init__(store.clock, store.rule, None, len(store))
        self._share = store.share
        self._source: dict[str, Tensor] = {ROWS: store.there, **store.states}
        self._begin = 0  # the row that the source begins with
        self._next = 0  # the first row that was not read yet
        self._settled = False
        self._lock = threading.Lock()
        cuda = store.device.type == "cuda"
        self._moment = torch.cuda.current_stream(store.device).record_event() if cuda else None

    @property
    def host_bytes(self) -> int:
        return 0 if self._settled else sum(values[self._next :].nbytes for values in self._source.values())

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        for first in range(0, max(self.most, 1), size):
            yield self._read(first, min(first + size, self.most))

    def _read(self, first: int, last: int) -> RowData:
        with self._lock:
            assert self._source, "this capture is closed"
            found = {name: values[first - self._begin : last - self._begin] for name, values in self._source.items()}
            if not self._settled:
                found = {name: to_host(values, self._moment) for name, values in found.items()}
            self._next = last
        return RowData(self._share.id_of(torch.arange(first, last)), found.pop(ROWS), found)

    def settle(self) -> None:
        with self._lock:
            if not self._settled:
                rest = {name: values[self._next :] for name, values in self._source.items()}
                self._source = {name: to_host(values, self._moment) for name, values in rest.items()}
                self._begin, self._settled = self._next, True

    def close(self) -> None:
        with self._lock:
            self._source, self._settled = {}, True
