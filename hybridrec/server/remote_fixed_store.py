"""RemoteFixedStore: a table of fixed rows on servers, as a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.out_of_range import resolve
from hybridrec.embedding.store import Capture, RowData, Slots
from hybridrec.optim.rule import RowRule
from hybridrec.server.declared import declaration_of
from hybridrec.server.placement import owners
from hybridrec.server.remote_rows import RemoteCapture
from hybridrec.server.remote_store import RemoteStore, numbered


class RemoteFixedStore(RemoteStore):
    """Rows 0 … n - 1, of which servers hold those that training has seen, or somebody has loaded.

    The others have their initial values, which servers and trainers can draw: so nobody needs memory for all rows. To
    whoever asks for the table, all of it is there.
    """

    # -- a step -------------------------------------------------------------------------------------------

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        unique, inverse = resolve(self.table, self.checked(ids)).unique(return_inverse=True)
        return Slots(unique, inverse, numbered(unique >= 0), self.clock if train else None)

    def lookup(self, ids: Tensor) -> Tensor:
        found = resolve(self.table, self.checked(ids))
        rows = torch.zeros(len(ids), self.dim, dtype=self.dtype)
        rows[found >= 0] = super().lookup(found[found >= 0])
        return rows

    # -- all rows -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.table.fixed_rows

    def ids(self) -> Tensor:
        return torch.arange(len(self))

    def some_ids(self, count: int) -> Tensor:
        return torch.arange(min(count, len(self)))

    def read(self, ids: Tensor) -> RowData:
        found = resolve(self.table, self.checked(ids))
        if len(lost := ids[found < 0]):
            raise ValueError(f"table {self.table.name!r} has no row for id {int(lost[0])}; ids() has those it holds")
        return super().read(found)._replace(ids=ids, touched=None)

    def dirty(self, since: int) -> Tensor:
        return self.ids() if self.clock > since else torch.empty(0, dtype=torch.int64)

    def initial(self, ids: Tensor, rule: RowRule | None) -> RowData:
        """These rows as they are before any update by a rule."""
        drawn = torch.from_numpy(declaration_of(self.table, self.seed).initial(ids.numpy())).view(self.dtype)
        shapes = {c: (len(ids),) if c.per_row else (len(ids), self.dim) for c in (rule.state if rule else ())}
        return RowData(ids, drawn, {column.name: torch.full(shape, column.fill) for column, shape in shapes.items()})

    def kept(self, data: RowData) -> RowData:
        """Those that differ from their initial values, or have state that does."""
        if not len(data.ids):
            return data
        fresh = self.initial(data.ids, self.rule)
        differs = (_bits(data.rows.to(self.dtype)) != _bits(fresh.rows)).any(1)
        for name, values in data.state.items():
            differs |= (values != fresh.state[name]).view(len(differs), -1).any(1)
        state = {name: values[differs] for name, values in data.state.items()}
        return RowData(data.ids[differs], data.rows[differs], state)

    def load_alone(self, data: RowData) -> None:
        super().load_alone(self.kept(data))

    # -- what it held -------------------------------------------------------------------------------------

    def capture(self) -> Capture:
        self.settle()
        return FixedCapture(self, range(self.servers))

    def capture_saved(self) -> Capture:
        self.settle()
        return FixedCapture(self, self.mine)

    def counters(self) -> dict[str, int]:
        return {"nan_rows": super().counters()["nan_rows"]}


class FixedCapture(RemoteCapture):
    """All rows of some servers at one moment: first those that they hold, then their others in order of id."""

    def __init__(self, store: RemoteFixedStore, servers: Sequence[int]) -> None:
        super().__init__(store, servers)
        self._fixed, self._among, self.most = store, list(servers), _most(len(store), len(servers), store.servers)

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        held = [np.empty(0, np.int64)]
        for part in super().chunks(size):
            held.append(part.ids.numpy())
            if len(part.ids):
                yield part._replace(touched=None)
        there = np.sort(np.concatenate(held))
        for first in range(0, len(self._fixed), size):
            left = self._mine(_left(there, first, min(first + size, len(self._fixed))))
            if len(left) or (first == 0 and not len(there)):
                yield self._fixed.initial(torch.from_numpy(left), self.rule)

    def _mine(self, ids: np.ndarray) -> np.ndarray:
        """Those that belong to these servers."""
        count = self._fixed.servers
        return ids if len(self._among) == count else ids[np.isin(owners(ids, count), self._among)]


def _most(rows: int, servers: int, of: int) -> int:
    """The rows that some servers of all have at most: no more than twenty deviations beyond their part.

    >>> _most(100, 3, 3), _most(1_000_000, 1, 4)
    (100, 260000)
    """
    return min(rows, -(-rows * servers // of) + 10 * (isqrt(rows - 1) + 1)) if servers < of else rows


def _left(there: np.ndarray, first: int, last: int) -> np.ndarray:
    """The numbers from `first` to below `last` that are not among those, which ascend.

    >>> _left(np.array([1, 4, 7]), 3, 8)
    array([3, 5, 6])
    """
    left = np.ones(last - first, bool)
    low, high = np.searchsorted(there, [first, last])
    left[there[low:high] - first] = False
    return np.flatnonzero(left) + first


def _bits(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.int32 if rows.dtype == torch.float32 else torch.int16)
