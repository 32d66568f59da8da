"""The rows of a store as they were at one moment, to be written to disk while training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.store import Capture, RowData

if TYPE_CHECKING:
    from hybridrec.embedding.native_store import NativeStore


class NativeCapture(Capture):
    """Reads a native table in the order its rows lie in; rows that change before they were read are kept aside.

    >>> import hybridrec as hr
    >>> emb = hr.EmbeddingCollection([hr.Table("item", dim=2, rows=3)])
    >>> with emb["item"].capture() as capture:
    ...     [chunk.ids.tolist() for chunk in capture.chunks(2)]
    [[0, 1], [2]]
    """

    def __init__(self, store: NativeStore) -> None:
        self._store = store
        native = _native.Capture(store.native)
        self._native: _native.Capture | None = native
        super().__init__(store.clock, store.rule, store.sketch(), native.slots)

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        assert self._native is not None, "this capture is closed"
        for first in range(0, max(self._native.slots, 1), size):
            yield self._read(torch.from_numpy(self._native.used(first, first + size)))

    def _read(self, slots: Tensor) -> RowData:
        assert self._native is not None, "this capture is closed"
        store, n = self._store, len(slots)
        rows = torch.empty(n, store.dim, dtype=store.dtype)
        columns = self.rule.state if self.rule else ()
        state = [torch.empty(n, column.width(store.dim)) for column in columns]
        ids, touched, counts = torch.empty(3, n, dtype=torch.int64).unbind()
        records = ids.data_ptr(), touched.data_ptr(), counts.data_ptr()
        self._native.read(slots.data_ptr(), n, *records, rows.data_ptr(), [part.data_ptr() for part in state])
        shaped = {c.name: part[:, 0] if c.per_row else part for c, part in zip(columns, state, strict=True)}
        dynamic, counted = store.table.dynamic, store.counted
        return RowData(ids, rows, shaped, touched if dynamic else None, counts if counted else None)

    def close(self) -> None:
        """Let the store forget what it kept for this."""
        self._native = None
