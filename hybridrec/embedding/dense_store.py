"""Rows 0 … n - 1, or every so many of them, in one run of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.initial import initial_rows
from hybridrec.embedding.native_store import NativeStore, row_spec
from hybridrec.embedding.out_of_range import resolve
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import MISSING, WHOLE, Capture, Slots
from hybridrec.embedding.table import Table


class DenseStore(NativeStore):
    """The rows of a fixed table; slot s has the row of id `share.index + s * share.count`, of a whole table that of s.

    >>> DenseStore(Table("item", dim=4, rows=10)).lookup(torch.tensor([3, 3])).shape
    torch.Size([2, 4])
    >>> DenseStore(Table("item", dim=4, rows=10), share=Share(index=1, count=4)).ids()
    tensor([1, 5, 9])
    """

    def __init__(self, table: Table, seed: int = 0, share: Share = WHOLE) -> None:
        _native.set_threads(torch.get_num_threads())
        super().__init__(table, seed, _fresh(table, seed, share), share)
        self._clock = 0
        self._weight = self._view(self.native.weight())

    def _view(self, array: object) -> Tensor:
        """A tensor over native memory, which stays as long as the tensor does."""
        tensor = torch.from_numpy(array)
        return tensor if self.dtype == torch.float32 else tensor.view(self.dtype)

    @property
    def weight(self) -> Tensor:
        """All rows [n, dim] as they lie in memory: writing to it changes them.

        Whoever asks for it may write, so captures first copy what they have not read.
        """
        self.native.changing_all()
        return self._weight

    def state(self, name: str) -> Tensor:
        """All rows' optimizer state of this name, [n, dim] or [n], as it lies in memory until a rule is attached."""
        assert self.rule is not None, "no optimizer has attached its state"
        self.native.changing_all()
        values = torch.from_numpy(self.native.state(self.rule.names.index(name)))
        return values[:, 0] if self.rule.state[self.rule.names.index(name)].per_row else values

    # -- a step -------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        return self._clock

    def advance(self) -> None:
        self._clock += 1

    def stepped(self, not_finite: int) -> None:
        self.nan_rows += not_finite
        self._clock += 1  # a dynamic table advances by itself

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        unique, inverse = resolve(self.table, self.checked(ids)).unique(return_inverse=True)
        return Slots(unique, inverse, self._slots_of(unique), self._clock if train else None)

    def _find(self, ids: Tensor) -> Tensor:
        return self._slots_of(resolve(self.table, ids))

    def _place(self, ids: Tensor) -> Tensor:
        return self._slots_of(ids)

    def _slots_of(self, rows: Tensor) -> Tensor:
        """The slots uint32 of rows of the table, -1 being none."""
        share = self.share
        if share.count == 1 and not share.empty:
            return rows.to(torch.uint32)
        self.check_owned(rows[rows >= 0])
        return torch.where(rows < 0, MISSING, share.row_of(rows)).to(torch.uint32)

    # -- all rows -----------------------------------------------------------------------------------------

    def ids(self) -> Tensor:
        return self.share.id_of(torch.arange(len(self)))

    def refill(self, held: Capture) -> None:
        self._take(held.rule)
        self.native.changing_all()  # `_write` says nothing
        if held.most < len(self):
            self.clear()
        for part in held.chunks():
            self.check(*part)
            if is_run(slots := self.share.row_of(part.ids)):
                self._write(int(slots[0]), part)
            else:
                self.load(*part)
        self._clock = held.clock

    def erase(self, ids: Tensor) -> None:
        key = _native.table_key(self.table.name, self.seed)
        ids, first, last = self.checked(ids), self.share.column, self.share.column + self.dim
        self.load(ids, initial_rows(self.table.init, key, ids, last, self.dtype)[:, first:])

    def clear(self) -> None:
        self.weight.copy_(self._view(_fresh(self.table, self.seed, self.share).weight()))
        for column in self.rule.state if self.rule else ():
            self.state(column.name).fill_(column.fill)

    def dirty(self, since: int) -> Tensor:
        return self.ids() if self._clock > since else torch.empty(0, dtype=torch.int64)

    def counters(self) -> dict[str, int]:
        return {"nan_rows": self.nan_rows}

    def memory(self) -> dict[str, float]:
        return {**self.native.memory(), "index": 0, "overhead_per_row": 0.0}


def is_run(ids: Tensor) -> bool:
    """Whether each id follows the one before. By NumPy, whose threads do not take the cores from the copy."""
    found = ids.numpy()
    return bool(len(found) and found[-1] - found[0] == len(found) - 1 and (found[1:] == found[:-1] + 1).all())


def _fresh(table: Table, seed: int, share: Share) -> _native.DenseTable:
    rows = share.rows_of(table.fixed_rows)
    return _native.DenseTable(row_spec(table, seed, share), rows, table.out_of_range or "error")
