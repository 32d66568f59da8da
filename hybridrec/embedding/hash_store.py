"""Rows of any ids in native memory, which come as training sees them and go by the table's policies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.native_store import NativeStore, row_spec
from hybridrec.embedding.policies import LFU, LRU, TTL, MinCount, Probability
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Capture, RowData, Slots
from hybridrec.embedding.table import Table


class HashStore(NativeStore):
    """The rows of a dynamic table; a share of one has its part of the capacity.

    >>> store = HashStore(Table("user", dim=4, capacity=1000))
    >>> store.release(store.prepare(torch.tensor([-5, 7, 7]), train=True))
    >>> store.ids()
    tensor([-5,  7])
    """

    def __init__(self, table: Table, seed: int = 0, share: Share = WHOLE) -> None:
        _native.set_threads(torch.get_num_threads())
        self.capacity = capacity_of(table, share)
        super().__init__(table, seed, self._open(table, seed, share), share)

    def _open(self, table: Table, seed: int, share: Share) -> _native.HashTable:
        return _native.HashTable(row_spec(table, seed, share), *policy_of(table, share))

    # -- a step -------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        return self.native.clock

    def advance(self) -> None:
        self.native.advance()

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        ids = self.checked(ids)
        self.check_owned(ids)
        if train and step is not None:
            self.native.clock = step
        slots = self._admit(ids) if train else self._find(ids)
        unique, inverse = ids.unique(return_inverse=True)
        of_unique = torch.empty(len(unique), dtype=torch.int64).index_copy_(0, inverse, slots.long())
        return Slots(unique, inverse, of_unique.to(torch.uint32), self.clock if train else None)

    def _admit(self, ids: Tensor) -> Tensor:
        slots = torch.empty(len(ids), dtype=torch.uint32)
        try:
            self.native.admit(ids.data_ptr(), len(ids), slots.data_ptr())
        except ValueError as error:  # more rows in flight than the table may hold
            raise full_error(self.table, error) from None
        return slots

    def _find(self, ids: Tensor) -> Tensor:
        ids, slots = ids.contiguous(), torch.empty(len(ids), dtype=torch.uint32)
        self.native.find(ids.data_ptr(), len(ids), slots.data_ptr())
        return slots

    def _place(self, ids: Tensor) -> Tensor:
        slots, there = torch.empty(len(ids), dtype=torch.uint32), self._find(ids)
        there = there[there.view(torch.int32) != -1]
        touched, counts = self._scores(there)
        try:
            self.native.put(ids.data_ptr(), len(ids), slots.data_ptr())
        except ValueError as error:
            self._set_scores(there, touched, counts)  # which were touched, lest they make room for the others
            raise full_error(self.table, error) from None
        return slots

    # -- all rows -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.native.live()) if isinstance(self.table.eviction, TTL) else len(self.native)

    def ids(self) -> Tensor:
        slots = torch.from_numpy(self.native.live())
        ids = torch.empty(len(slots), dtype=torch.int64)
        self.native.ids(slots.data_ptr(), len(slots), ids.data_ptr())
        return ids

    def read(self, ids: Tensor) -> RowData:
        data = super().read(ids)
        touched, counts = self._scores(self._find(ids))
        return data._replace(touched=touched, counts=counts if self.counted else None)

    @property
    def counted(self) -> bool:
        return isinstance(self.table.eviction, LFU)

    def _scores(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        touched, counts = torch.zeros(2, len(slots), dtype=torch.int64).unbind()
        self.native.scores(slots.data_ptr(), len(slots), touched.data_ptr(), counts.data_ptr())
        return touched, counts

    def _set_scores(self, slots: Tensor, touched: Tensor, counts: Tensor) -> None:
        self.native.set_scores(slots.data_ptr(), len(slots), touched.data_ptr(), counts.data_ptr())

    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        super().load(ids, rows, state, touched, counts)
        seen = torch.full_like(ids, self.clock) if touched is None else touched.long().contiguous()
        often = torch.ones_like(ids) if counts is None else counts.long().contiguous()
        self._set_scores(self._find(ids), seen, often)

    def sketch(self) -> Tensor | None:
        sketch = self.native.sketch()
        return None if sketch is None else torch.from_numpy(sketch)

    def make_room(self, rows: int) -> None:
        """Take the memory that so many rows need, as far as the capacity goes, before they are restored."""
        self.native.make_room(rows)

    def refill(self, held: Capture) -> None:
        if held.most > self.capacity:
            raise full_error(self.table, f"holds {self.capacity} rows, and {held.most} are to be restored")
        self._take(held.rule)
        try:
            self.native.reserve_empty(held.most)
            for part in held.chunks():
                self._append(part, held)
        except BaseException:
            self.native.clear()
            raise
        self.native.clock = held.clock
        if held.sketch is not None:
            self.native.set_sketch(held.sketch.numpy().tobytes())
        self.native.whole()

    def _append(self, part: RowData, held: Capture) -> None:
        self.check(*part)
        first, ids = len(self.native), part.ids.contiguous()
        touched = torch.full_like(ids, held.clock) if part.touched is None else part.touched.long().contiguous()
        counts = part.counts if part.counts is None else part.counts.long().contiguous()
        of_counts = 0 if counts is None else counts.data_ptr()  # 1 each
        twice = self.native.append(ids.data_ptr(), touched.data_ptr(), of_counts, len(ids))
        if twice >= 0:
            raise ValueError(f"table {self.table.name!r}: id {int(ids[twice])} is there twice; each may come once")
        self._write(first, part)

    def erase(self, ids: Tensor) -> None:
        ids = self.checked(ids)
        self.native.erase(ids.data_ptr(), len(ids))

    def clear(self) -> None:
        self.native.clear()

    def dirty(self, since: int) -> Tensor:
        ids = self.ids()
        return ids[self._scores(self._find(ids))[0] >= since]

    def counters(self) -> dict[str, int]:
        return {**self.native.counters(), "nan_rows": self.nan_rows}

    def memory(self) -> dict[str, float]:
        return {**self.native.memory(), **self.native.overhead()}


def full_error(table: Table, error: Exception | str) -> ValueError:
    """What to raise where a step needs more rows at once than the table may hold."""
    what = str(error).removeprefix("table ")
    return ValueError(f"table {table.name!r} {what}; give it a larger capacity, or take smaller batches")


def capacity_of(table: Table, share: Share) -> int:
    """The rows that a share of a dynamic table may hold; at least one, as native tables do.

    >>> capacity_of(Table("user", dim=4, capacity=1000), Share(index=2, count=3))
    334
    """
    assert table.capacity is not None, "a fixed table has no capacity"
    return 1 if share.empty else -(-table.capacity // share.count)


def policy_of(table: Table, share: Share) -> tuple[int, str, int, float, int]:
    """Capacity, eviction, steps to live, probability and minimum count, as native code wants them.

    >>> policy_of(Table("user", dim=4, capacity=1000, admission=MinCount(3)), WHOLE)
    (1000, 'lru', 0, 1.0, 3)
    """
    kind = {LRU: "lru", LFU: "lfu", TTL: "ttl"}.get(type(table.eviction), "none")
    steps = table.eviction.steps if isinstance(table.eviction, TTL) else 0
    probability = table.admission.p if isinstance(table.admission, Probability) else 1.0
    count = table.admission.k if isinstance(table.admission, MinCount) else 0
    return capacity_of(table, share), kind, steps, probability, count
