"""SavedTable: the rows of a checkpoint that belong into a store, whichever files they are in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.policies import LFU
from hybridrec.embedding.store import WHOLE, Capture, RowData, Store
from hybridrec.server.placement import by_server
from hybridrec.server.remote_store import RemoteStore
from hybridrec.train.checkpoint.slices import Slices, slices_of
from hybridrec.train.checkpoint.table_info import TableInfo


class SavedTable(Capture):
    """A saved table as a store wants it, or all of it: read in chunks, from maps of the files, and never written.

    A chunk is a view of its file where rows lie there as they are wanted. Where a share of a dynamic table has no room
    for all its rows, those of the lowest scores are given up; `given_up` says how many.
    """

    def __init__(self, folder: Path, info: TableInfo, home: Store | None = None, sketch: Tensor | None = None) -> None:
        self._info, self._home = info, home
        self._share = WHOLE if home is None else home.saved
        self._state = info.rule if home is None or home.rule == info.rule else None
        self._slices = slices_of(folder, info, [part for part in info.parts if part.meets(self._share)])
        self._gone, most = self._without_room(sum(self._count(slices) for slices in self._slices))
        super().__init__(info.clock, info.rule if home is None else home.rule, sketch, most)

    @property
    def given_up(self) -> int:
        return len(self._gone)

    @property
    def _columns(self) -> range:
        first = self._share.column
        return range(first, first + self._share.dim_of(self._info.dim))

    # -- which rows -----------------------------------------------------------------------------------------

    def _picked(self, slices: Slices, batch: int) -> Tensor | None:
        """Which rows of a batch are wanted, by position; None for all."""
        whole = slices.first.within(self._share)
        if whole and not len(self._gone):
            return None
        ids = slices.of_row(batch, "id")
        wanted = torch.ones(len(ids), dtype=torch.bool) if whole else self._owned(ids)
        if len(self._gone):
            wanted &= ~torch.isin(ids, self._gone)
        return wanted.nonzero()[:, 0]

    def _owned(self, ids: Tensor) -> Tensor:
        assert self._home is not None, "without a store all rows are wanted"
        return self._share.owns(self._home.table, ids)

    def _count(self, slices: Slices) -> int:
        if slices.first.within(self._share):
            return slices.first.rows
        return sum(int(self._owned(slices.of_row(batch, "id")).sum()) for batch in range(len(slices)))

    def _without_room(self, most: int) -> tuple[Tensor, int]:
        """The ids int64 that a store has no room for, and how many rows are left."""
        self._gone = torch.empty(0, dtype=torch.int64)
        room: int | None = getattr(self._home, "capacity", None)  # of stores whose rows come and go, wherever they are
        if self._home is None or room is None or most <= room:
            return self._gone, most
        score = "count" if isinstance(self._home.table.eviction, LFU) else "touched"
        chunks = [(self._picked(each, batch), each, batch) for each in self._slices for batch in range(len(each))]
        ids, scores = (
            torch.cat([_at(each.of_row(batch, name), picked) for picked, each, batch in chunks]).numpy()
            for name in ("id", score if score in self._slices[0].names else "touched")
        )
        servers = self._home.servers if isinstance(self._home, RemoteStore) else 1
        gone = np.concatenate([_lowest(ids[at], scores[at], room) for at in by_server(ids, servers)])
        return torch.from_numpy(np.sort(gone)), most - len(gone)

    def ids(self) -> Iterator[Tensor]:
        """The ids of each chunk, without reading its rows."""
        for slices in self._slices:
            for batch in range(len(slices)):
                yield _at(slices.of_row(batch, "id"), self._picked(slices, batch))

    # -- rows -----------------------------------------------------------------------------------------------

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        found = False
        for slices in self._slices:
            for batch in range(len(slices)):
                picked = self._picked(slices, batch)
                if picked is None or len(picked):
                    found = True
                    yield self._chunk(slices, batch, picked)
        if not found:
            yield self._nothing()

    def _chunk(self, slices: Slices, batch: int, picked: Tensor | None) -> RowData:
        def of_row(name: str) -> Tensor:
            return _at(slices.of_row(batch, name), picked)

        def of_columns(name: str) -> Tensor:
            return slices.of_columns(batch, name, self._columns, picked)

        columns = self._state.state if self._state else ()
        state = {c.name: of_row(c.name) if c.per_row else of_columns(c.name) for c in columns}
        touched, counts = (of_row(name) if name in slices.names else None for name in ("touched", "count"))
        return RowData(of_row("id"), of_columns("row").to(self._dtype), state, touched, counts)

    def _nothing(self) -> RowData:
        dim, none = len(self._columns), torch.empty(0, dtype=torch.int64)
        columns = self._state.state if self._state else ()
        state = {c.name: torch.empty((0,) if c.per_row else (0, dim)) for c in columns}
        names = self._slices[0].names if self._slices else []
        touched, counts = (none if name in names else None for name in ("touched", "count"))
        return RowData(none, torch.empty(0, dim, dtype=self._dtype), state, touched, counts)

    @property
    def _dtype(self) -> torch.dtype:
        return getattr(torch, self._info.dtype)

    def close(self) -> None:
        self._slices = []


def _lowest(ids: np.ndarray, scores: np.ndarray, room: int) -> np.ndarray:
    """The ids of the lowest scores that there is no room for."""
    return ids[np.lexsort((ids, scores))[: max(0, len(ids) - room)]]


def _at(values: Tensor, picked: Tensor | None) -> Tensor:
    return values if picked is None else values[picked]
