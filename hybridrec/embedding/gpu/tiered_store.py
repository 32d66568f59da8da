"""Rows 0 … n - 1 in two tiers: hot ones in the memory of a GPU, cold ones in that of its host."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.gpu.capture import ROWS, Settles
from hybridrec.embedding.gpu.pinned import Pinned
from hybridrec.embedding.gpu.store import DeviceStore, draw_initial
from hybridrec.embedding.gpu.tiered_capture import TieredCapture
from hybridrec.embedding.gpu.transfer import rows_of_part
from hybridrec.embedding.id_hash import hashed_rows
from hybridrec.embedding.out_of_range import resolve
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, RowData, Snapshot
from hybridrec.embedding.table import Table
from hybridrec.ops.philox.part import Part
from hybridrec.ops.row_cache import triton as tiers
from hybridrec.ops.row_cache.cache import Column, RowCache, Sizes
from hybridrec.ops.row_cache.cache import of as at
from hybridrec.ops.row_cache.packing import packed_width
from hybridrec.ops.row_update.triton import Drawn
from hybridrec.optim.rule import RowRule
from hybridrec.types.id_block import NO_ID


class Flight:
    """Rows that a lookup has on the device: they stay as long as somebody has this."""


class TieredStore(DeviceStore):
    """The rows of a fixed table, `slots` of them on the device at a time; what lookups take for ids are slots.

    `admit` gives the slots of a lookup, and its flight: who may still send a gradient to them keeps that.
    """

    one_piece = False

    def __init__(
        self,
        table: Table,
        seed: int,
        device: torch.device,
        slots: int,
        share: Share = WHOLE,
        sizes: Sizes = Sizes(),  # noqa: B008
    ) -> None:
        self.cache = RowCache.make(share.rows_of(table.fixed_rows), slots, device, sizes)
        self._pinned: list[Pinned] = []  # cold rows, then cold state
        self._flights: deque[tuple[weakref.ref[Flight], Tensor]] = deque()  # in their order, with their numbers
        self._told = 0  # refused admissions
        self._seen = torch.zeros(at.LASTING, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._copied: Any = None  # the event after which `_seen` can be read
        self._admitted: Any = None  # the end of the last admission, which has a stream of its own
        self._touched: Any = None  # the end of the last that read or wrote rows by their numbers
        super().__init__(table, seed, device, share)

    def _add(
        self, shape: tuple[int, ...], fill: float, dtype: torch.dtype = torch.float32, kept: torch.dtype = torch.float32
    ) -> Tensor:
        """A column of a type in both tiers, cold rows kept in another; its part on the device."""
        widths = [packed_width(size, kept) for size in shape]
        cold = Pinned((self.cache.places, *widths), fill, kept, self.device, self.table.name)
        hot = torch.full((self.cache.slots, *shape), fill, dtype=dtype, device=self.device)
        self._pinned.append(cold)
        self.cache.columns.append(Column(hot, cold.tensor))
        return hot

    def _make_rows(self) -> Tensor:
        self.cache.key = self.key
        return self._add((self.dim,), 0, self.dtype, self.table.cold_dtype)

    def _make_states(self, rule: RowRule) -> dict[str, Tensor]:
        return {c.name: self._add(() if c.per_row else (self.dim,), c.fill) for c in rule.state}

    def detach(self) -> None:
        super().detach()
        del self.cache.columns[1:], self._pinned[1:]

    @property
    def drawn(self) -> Drawn:
        return Drawn(self.key, self.part, self.cache.owner.data_ptr())  # by rows, whatever slots they are in

    @property
    def weight(self) -> Tensor:
        raise TypeError(f"the rows of table {self.table.name!r} are in two tiers; read(ids) and load() are for both")

    def state(self, name: str) -> Tensor:
        raise TypeError(f"the state of table {self.table.name!r} is in two tiers; read(ids) and load() are for both")

    # -- a lookup -----------------------------------------------------------------------------------------

    def admit(self, ids: Tensor) -> tuple[Tensor, Flight]:
        """The slots int64 of ids on the device, whose rows stay there as the flight does; other ids stay ids."""
        if self.table.out_of_range == "hash" and len(self) == self.table.fixed_rows:
            outside = ((ids < 0) | (ids >= len(self))) & (ids != NO_ID)
            ids = torch.where(outside, hashed_rows(ids, len(self)), ids)
        self.settle()
        _wait(self._touched, self.device)
        slots, number = tiers.admit(self.cache, ids)
        self._admitted = _moment(self.device)
        flight = Flight()
        self._flights.append((weakref.ref(flight), number))
        return slots, flight

    def land(self) -> None:
        """Rows that no flight needs any more may go, when what was launched until now is done.

        One that is older than another keeps the rows of both.
        """
        number = None
        while self._flights and self._flights[0][0]() is None:
            number = self._flights.popleft()[1]
        if number is not None:
            tiers.land(self.cache, number)
            if number.is_cuda:
                number.record_stream(torch.cuda.current_stream(self.device))

    def watch(self) -> None:
        """Raise if an earlier admission was refused; nobody waits for the device to know."""
        if self.device.type == "cpu":
            return self._refuse(self.cache.lasting)
        if torch.cuda.is_current_stream_capturing():
            return None
        if self._copied is not None and self._copied.query():
            self._copied = None
            self._refuse(self._seen)
        if self._copied is None:
            self._seen.copy_(self.cache.lasting, non_blocking=True)
            self._copied = torch.cuda.current_stream(self.device).record_event()
        return None

    def _refuse(self, lasting: Tensor) -> None:
        refused, lack = int(lasting[at.REFUSED]), int(lasting[at.LACK])
        if refused > self._told:
            self._told = refused
            raise ValueError(
                f"table {self.table.name!r} has {self.cache.slots:,} rows on {self.device}, and the batches in flight "
                f"needed {lack:,} more: an earlier lookup took its rows for zeros, and none was lost or changed. Give "
                f"it cache={self.cache.slots + lack} or more, smaller batches, or a step after each of them"
            )

    # -- all rows -----------------------------------------------------------------------------------------

    def _column(self, name: str) -> int:
        return 0 if name == ROWS else 1 + list(self.states).index(name)

    def columns(self, at: Tensor) -> dict[str, Tensor]:
        """Rows and state of slots int64 by name, copied to the CPU."""
        return {name: self._read(name, at) for name in (ROWS, *self.states)}

    def _read(self, name: str, at: Tensor) -> Tensor:
        column = self._column(name)
        like = self.cache.columns[column].hot
        parts = at.split(rows_of_part(like[:1].nbytes))
        _wait(self._admitted, self.device)
        return torch.cat([tiers.read(self.cache, column, part.to(self.device)).cpu() for part in parts])

    def _write(self, name: str, at: Tensor, given: Tensor | float) -> None:
        column = self._column(name)
        like, size = self.cache.columns[column].hot, rows_of_part(self.cache.columns[column].hot[:1].nbytes)
        _wait(self._admitted, self.device)
        for first in range(0, len(at), size):
            part = at[first : first + size].to(self.device)
            new = given[first : first + size] if isinstance(given, Tensor) else like.new_tensor(given)
            tiers.write(self.cache, column, part, new.to(like).expand(len(part), *like.shape[1:]))
        self._touched = _moment(self.device)

    def overwrite(self, first: int, rows: Tensor) -> None:
        """Give rows, from the first on, other values; their state stays."""
        self.settle()
        self._write(ROWS, torch.arange(first, first + len(rows)), rows)

    def lookup(self, ids: Tensor) -> Tensor:
        rows = self._at(resolve(self.table, ids.to(self.device)))
        _wait(self._admitted, self.device)
        found = tiers.read(self.cache, 0, rows)
        self._touched = _moment(self.device)
        return found

    def snapshot(self) -> Snapshot:
        found = self.columns(torch.arange(len(self)))
        return Snapshot(RowData(self.ids(), found.pop(ROWS), found), self._clock, self.rule)

    def _make_capture(self) -> Settles:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # rows that are on their way have come
        return TieredCapture(self)

    def clear(self) -> None:
        self.settle()
        every = torch.arange(len(self))
        self._initialise()
        for column in self.rule.state if self.rule else ():
            self._write(column.name, every, column.fill)

    def _initialise(self, at: Tensor | None = None) -> None:
        size = rows_of_part(self.there[:1].nbytes)
        parts = torch.arange(len(self)).split(size) if at is None else at.split(1)
        for part in parts:  # a run of rows
            made = torch.empty(len(part), self.dim, dtype=self.dtype, device=self.device)
            first, stride, column = self.part
            draw_initial(self.table.init, made, self.key, None, Part(first + int(part[0]) * stride, stride, column))
            self._write(ROWS, part, made)

    # -- figures ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        figures = self.cache.figures()
        moved = {"ids": figures.ids, "cold_ids": figures.cold_ids, "moved_rows": figures.moved}
        return {**super().counters(), **moved, "bytes_each_way": figures.bytes_each_way}

    def memory(self) -> dict[str, float]:
        sizes = [hot.nbytes + cold.nbytes for hot, cold in self.cache.columns]
        rows, state = sizes[0], sum(sizes[1:])
        index = self.cache.directory.nbytes + self.cache.owner.nbytes + self.cache.stamp.nbytes
        return {
            **{"rows": rows, "state": state, "index": index, "allocated": rows + state + index},
            "overhead_per_row": index / len(self),
        }

    # -- copies -------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        return _remade, (self.table, self.seed, self.device, self.cache.slots, self.share, self.snapshot())

    def __deepcopy__(self, memo: dict) -> TieredStore:
        return _remade(self.table, self.seed, self.device, self.cache.slots, self.share, self.snapshot())


def _moment(device: torch.device) -> Any:
    return None if device.type == "cpu" else torch.cuda.current_stream(device).record_event()


def _wait(moment: Any, device: torch.device) -> None:
    if moment is not None:
        torch.cuda.current_stream(device).wait_event(moment)


def _remade(
    table: Table, seed: int, device: torch.device, slots: int, share: Share, snapshot: Snapshot
) -> TieredStore:  # fmt: skip
    made = TieredStore(table, seed, device, slots, share)
    made.restore(snapshot)
    return made
