"""Rows 0 … n - 1 in two tiers: hot ones in the memory of a GPU, cold ones in that of its host."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.gpu import memory
from hybridrec.embedding.gpu.capture import ROWS, Settles
from hybridrec.embedding.gpu.read_capture import ReadCapture
from hybridrec.embedding.gpu.store import DeviceStore, draw_initial
from hybridrec.embedding.gpu.tier_class import Flight, TierClass
from hybridrec.embedding.gpu.transfer import rows_of_part
from hybridrec.embedding.out_of_range import resolve
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, RowData, Snapshot
from hybridrec.embedding.table import Table
from hybridrec.ops.philox.part import Part
from hybridrec.ops.row_cache.cache import MOST_ROWS, RowCache, Sizes
from hybridrec.ops.row_cache.runs import Run, Runs
from hybridrec.ops.row_update.triton import Drawn
from hybridrec.optim.rule import RowRule


class TieredStore(DeviceStore):
    """The rows of a fixed table, of which the device has some at a time; what lookups take for ids are slots.

    They get memory with a class of tables (`TierClass`): the group of the store forms classes, and a store that is used
    before has one of its own. `slots` is what it brings to those of its class.
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
        begins: Snapshot | None = None,
    ) -> None:
        self.slots, self.sizes = slots, sizes
        self.base = 0  # its first row among those of its class
        self._tier: TierClass | None = None
        self._begins = begins  # what it holds at first, in place of initial rows
        super().__init__(table, seed, device, share)
        if len(self) > MOST_ROWS:
            raise ValueError(
                f"table {table.name!r} has {len(self):,} rows on {device} and its host, and a cache is for at most "
                f"{MOST_ROWS:,} of them; spread it over more GPUs by rows, or give it where='host' in place of cache="
            )
        if begins is not None:
            self._clock, self.rule = begins.clock, begins.rule

    def _begin(self) -> None:
        """Rows get memory with those of others."""

    def join(self, tier: TierClass, base: int, rows: Tensor) -> None:
        """Its rows are those of a class from `base` on."""
        self._tier, self.base, self.there = tier, base, rows
        begins, self._begins = self._begins, None
        self.rule = None  # there is no state yet
        self.clear()
        if begins is not None:
            self.restore(begins)

    @property
    def kind(self) -> Hashable:
        """What tables that share a cache have in common: rows of frozen ones need no room for state of the others."""
        return self.dim, self.dtype, self.table.cold_dtype, self.table.path, self.table.trainable

    @property
    def fresh(self) -> bool:
        """Whether it has no memory yet, so that it can join others."""
        return self._tier is None

    @property
    def tier(self) -> TierClass:
        """The class of tables that it shares a cache with."""
        if self._tier is None:
            TierClass([self])
        assert self._tier is not None, "a class has its stores join it"
        return self._tier

    @property
    def cache(self) -> RowCache:
        """The rows of its class."""
        return self.tier.cache

    def attach(self, rule: RowRule) -> None:
        self.detach()  # first, so that there is room
        self.states, used = self.tier.lend(self, rule)
        self.rule = rule
        for column in rule.state:
            if column.name in used:
                self._write(column.name, torch.arange(len(self)), column.fill)

    def detach(self) -> None:
        super().detach()
        self.tier.take_back(self)

    def _state_bytes(self, rule: RowRule) -> int:
        return memory.state_bytes(self.table, rule, self.share, self.slots)  # of all that its class has, what it brings

    @property
    def drawn(self) -> Drawn:
        first, stride, column = self.part  # by rows, whatever slots they are in
        return Drawn(self.key, Part(first - self.base * stride, stride, column), self.cache.owner.data_ptr())

    @property
    def weight(self) -> Tensor:
        raise TypeError(f"the rows of table {self.table.name!r} are in two tiers; read(ids) and load() are for both")

    def state(self, name: str) -> Tensor:
        raise TypeError(f"the state of table {self.table.name!r} is in two tiers; read(ids) and load() are for both")

    # -- a lookup -----------------------------------------------------------------------------------------

    def run(self, start: int, count: int) -> Run:
        """Ids of a block, which are of this table."""
        hashed = self.table.out_of_range == "hash" and len(self) == self.table.fixed_rows
        return Run(start, count, len(self), self.base, hashed)

    def admit(self, ids: Tensor) -> tuple[Tensor, Flight]:
        """The slots int64 of ids of this table alone, whose rows stay on the device as the flight does."""
        slots, runs = ids.clone(), Runs.make([self.run(0, len(ids))], self.device, self.sizes.ids)
        flight = self.tier.admit(ids, runs, slots)
        flight.arrive(self.device)
        return slots, flight

    # -- all rows -----------------------------------------------------------------------------------------

    def columns(self, at: Tensor) -> dict[str, Tensor]:
        """Rows and state of slots int64 by name, copied to the CPU."""
        return {name: self._read(name, at) for name in (ROWS, *(self.rule.names if self.rule else ()))}

    def _read(self, name: str, at: Tensor) -> Tensor:
        column = self.tier.place(self, name)
        like = self.cache.columns[column].hot
        parts = at.split(rows_of_part(like[:1].nbytes))
        return torch.cat([self.tier.read(column, self._numbers(part)).cpu() for part in parts])

    def _write(self, name: str, at: Tensor, given: Tensor | float) -> None:
        column = self.tier.place(self, name)
        like, size = self.cache.columns[column].hot, rows_of_part(self.cache.columns[column].hot[:1].nbytes)
        for first in range(0, len(at), size):
            part = self._numbers(at[first : first + size])
            new = given[first : first + size] if isinstance(given, Tensor) else like.new_tensor(given)
            self.tier.write(column, part, new.to(like).expand(len(part), *like.shape[1:]))

    def _numbers(self, at: Tensor) -> Tensor:
        """Rows of the class, on the device; those that are none stay so."""
        there = at.to(self.device)
        return torch.where(there < 0, there, there + self.base)

    def overwrite(self, first: int, rows: Tensor) -> None:
        """Give rows, from the first on, other values; their state stays."""
        self.settle()
        self._write(ROWS, torch.arange(first, first + len(rows)), rows)

    def lookup(self, ids: Tensor) -> Tensor:
        rows = self._at(resolve(self.table, ids.to(self.device)))
        found = self.tier.read(0, self._numbers(rows))
        self.tier.touch()
        return found

    def snapshot(self) -> Snapshot:
        self.tier.check()
        return Snapshot(self._rows_between(0, len(self)), self._clock, self.rule)

    def _make_capture(self) -> Settles:
        self.tier.check()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # rows that are on their way have come
        return ReadCapture(self.clock, self.rule, len(self), self._rows_between, self.row_bytes)

    def _rows_between(self, first: int, last: int) -> RowData:
        found = self.columns(at := torch.arange(first, last))
        return RowData(self.share.id_of(at), found.pop(ROWS), found)

    def clear(self) -> None:
        self.settle()
        every = torch.arange(len(self))
        self._initialise()
        for column in self.rule.state if self.rule else ():
            self._write(column.name, every, column.fill)

    def _initialise(self, at: Tensor | None = None) -> None:
        size = rows_of_part(self.dim * self.dtype.itemsize)
        parts = torch.arange(len(self)).split(size) if at is None else at.split(1)
        for part in parts:  # a run of rows
            made = torch.empty(len(part), self.dim, dtype=self.dtype, device=self.device)
            first, stride, column = self.part
            draw_initial(self.table.init, made, self.key, None, Part(first + int(part[0]) * stride, stride, column))
            self._write(ROWS, part, made)

    # -- figures ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Those of the row update are its own; what was admitted and moved is that of all tables of its class."""
        figures = self.tier.figures()
        moved = {"ids": figures.ids, "cold_ids": figures.cold_ids, "moved_rows": figures.moved}
        return {**super().counters(), **moved, "bytes_each_way": figures.bytes_each_way}

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with the state that its rule needs."""
        return self.dim * self.dtype.itemsize + sum(values[:1].nbytes for values in self.states.values())

    def memory(self) -> dict[str, float]:
        cold = self.table.cold_row_bytes(self.dim)
        rows = self.slots * self.dim * self.dtype.itemsize + (len(self) - self.slots) * cold
        state = sum(values[:1].nbytes for values in self.states.values()) * len(self)
        index = memory.ENTRY * len(self) + memory.SLOT * self.slots
        return {
            **{"rows": rows, "state": state, "index": index, "allocated": rows + state + index},
            "overhead_per_row": index / max(1, len(self)),
        }

    # -- copies -------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        return _remade, (self.table, self.seed, self.device, self.slots, self.share, self.snapshot())

    def __deepcopy__(self, memo: dict) -> TieredStore:
        return _remade(self.table, self.seed, self.device, self.slots, self.share, self.snapshot())


def begins_of(stores: Mapping[str, DeviceStore]) -> tuple[dict[str, int], int]:
    """Where the rows that kernels see of each table begin among those of all, and how many those are.

    Tables that share slots begin at the same one: no two rows are in a slot at a time.
    """
    begins: dict[Any, int] = {}
    end, made = 0, {}
    for name, store in stores.items():
        home = store.tier if isinstance(store, TieredStore) else store
        if home not in begins:
            begins[home], end = end, end + len(store.there)
        made[name] = begins[home]
    return made, end


def _remade(
    table: Table, seed: int, device: torch.device, slots: int, share: Share, snapshot: Snapshot
) -> TieredStore:  # fmt: skip
    return TieredStore(table, seed, device, slots, share, begins=snapshot)
