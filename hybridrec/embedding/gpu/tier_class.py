"""TierClass: tables with rows of one kind that share a cache, so that one admission serves them all."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hybridrec.embedding.gpu import memory
from hybridrec.embedding.gpu.capture import ROWS
from hybridrec.embedding.gpu.cold_file import ColdFile
from hybridrec.embedding.gpu.lane import Lane
from hybridrec.embedding.gpu.pinned import Pinned
from hybridrec.ops.row_cache import staged
from hybridrec.ops.row_cache import triton as tiers
from hybridrec.ops.row_cache.cache import MOST_ROWS, Column, Figures, RowCache
from hybridrec.ops.row_cache.cache import of as at
from hybridrec.ops.row_cache.packing import packed_width
from hybridrec.ops.row_cache.runs import Runs
from hybridrec.ops.row_cache.triton_ids import put_slots, rows_of
from hybridrec.ops.unbroken import unbroken
from hybridrec.optim.rule import RowRule

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.tiered_store import TieredStore


class Flight:
    """Rows that a lookup has on the device: they stay as long as somebody has this."""

    coming: Future[Any] | None = None  # of rows that the host brings: the event after which they are there

    def arrive(self, device: torch.device) -> None:
        """What is launched from now on finds the rows there; raise if the host could not bring them."""
        if self.coming is not None:
            wait(self.coming.result(), device)


class _Numbered(NamedTuple):
    """An admission: its number, and the event after which that is there."""

    number: Tensor  # int64 [1]
    admitted: Any


@dataclass(eq=False)
class _Held:
    """A column of all rows of the class, in both tiers."""

    hot: Tensor
    cold: Pinned | ColdFile
    per_row: bool

    @property
    def column(self) -> Column:
        return Column(self.hot, self.cold.tensor)


def classes_of(stores: Iterable[TieredStore]) -> list[list[TieredStore]]:
    """Which tables share a cache: those whose rows are alike, as far as one directory can number them."""
    made: list[list[TieredStore]] = []
    open: dict[Hashable, list[TieredStore]] = {}  # by the kind of rows, the class that more can join
    for store in stores:
        mine = open.get(store.kind)
        if mine is None or sum(map(len, mine)) + len(store) > MOST_ROWS:
            made.append(mine := [])
            open[store.kind] = mine
        mine.append(store)
    return made


class TierClass:
    """The rows of some tables, one table behind the other, in one RowCache with the slots of all.

    State of optimizers lies in columns that are the class's too. A table takes those of the width that its rule needs
    which are there already, so tables with one rule share each; where rules differ, some rows have state unused.
    """

    def __init__(self, stores: Iterable[TieredStore]) -> None:
        self.stores = tuple(stores)
        first, counts = self.stores[0], [len(store) for store in self.stores]
        self.device, self.dim = first.device, first.dim
        self.names = ", ".join(store.table.name for store in self.stores)
        self.cache = self._make_cache(sum(counts), sum(store.slots for store in self.stores))
        self._held: list[_Held] = []  # rows, then state
        self._lent: dict[TieredStore, dict[str, _Held]] = {}  # by their names
        self._flights: deque[tuple[weakref.ref[Flight], _Numbered]] = deque()  # in their order
        self._told = 0  # refused admissions
        # By the host: all that lasts but what has landed, which another stream may be telling meanwhile.
        self._seen = torch.zeros(at.LANDED, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        self._admitted: Any = None  # the end of the last admission, which has a stream of its own
        self._touched: Any = None  # the end of the last that read or wrote rows by their numbers
        self._landed: Any = None  # the end of the last that told which rows may go
        self.cache.key = first.key
        self._path = first.table.path  # of files with cold rows, which the host brings
        self._stage = None if self._path is None else staged.Stage(self._check)
        self._lane = Lane(self.device)
        rows = self._add(False, 0, first.dtype, first.table.cold_dtype)
        for store, base in zip(self.stores, accumulate([0, *counts]), strict=False):
            self._lent[store] = {ROWS: rows}
            store.join(self, base, rows.hot)

    @property
    def brought(self) -> bool:
        """Whether a thread of the host brings rows, on the stream of who asks for them."""
        return self._stage is not None

    def _make_cache(self, rows: int, slots: int) -> RowCache:
        size = rows * memory.ENTRY + slots * memory.SLOT
        told = "the places of rows in two tiers", self.names, size, self.device, memory.SMALLER_CACHE
        return memory.allocated(lambda: RowCache.make(rows, slots, self.device, self.stores[0].sizes), *told)

    # -- columns ------------------------------------------------------------------------------------------

    def _add(
        self, per_row: bool, fill: float, dtype: torch.dtype = torch.float32, kept: torch.dtype = torch.float32
    ) -> _Held:
        """A column of a type in both tiers, cold rows kept in another."""
        shape = () if per_row else (self.dim,)
        widths = [packed_width(size, kept) for size in shape]
        cold = self._cold((self.cache.places, *widths), fill, kept, self.names)
        hot = self._hot((self.cache.slots, *shape), fill, dtype)
        made = _Held(hot, cold, per_row)
        self._held.append(made)
        self.cache.columns.append(made.column)
        return made

    def _hot(self, shape: tuple[int, ...], fill: float, dtype: torch.dtype) -> Tensor:
        what, size = "the hot optimizer state" if self._held else "the hot rows", math.prod(shape) * dtype.itemsize
        return memory.allocated(
            lambda: torch.full(shape, fill, dtype=dtype, device=self.device),
            *(what, self.names, size, self.device, memory.SMALLER_CACHE),
        )

    def _cold(self, shape: tuple[int, ...], fill: float, kept: torch.dtype, names: str) -> Pinned | ColdFile:
        if self._path is None:
            return Pinned(shape, fill, kept, self.device, names)
        return ColdFile(shape, fill, kept, self._path, names)

    def _check(self) -> None:
        """Raise if cold rows cannot be read."""
        for held in self._held:
            if isinstance(held.cold, ColdFile):
                held.cold.check()

    def lend(self, store: TieredStore, rule: RowRule) -> tuple[dict[str, Tensor], set[str]]:
        """Memory on the device for the state of a table by a rule, and which of it holds something already."""
        self._lane.wait()
        free = self._held[1:]
        mine, used = self._lent[store], set()
        for column in rule.state:
            found = next((held for held in free if held.per_row == column.per_row), None)
            if found is None:
                found = self._add(column.per_row, column.fill)
            else:
                free.remove(found)
                used.add(column.name)
            mine[column.name] = found
        return {column.name: mine[column.name].hot for column in rule.state}, used

    def take_back(self, store: TieredStore) -> None:
        """The state of a table is gone; columns that no other has go as well."""
        self._lane.wait()
        self._lent[store] = {ROWS: self._held[0]}
        used = {id(held) for lent in self._lent.values() for held in lent.values()}
        self._held = [held for held in self._held if id(held) in used]
        self.cache.columns[:] = [held.column for held in self._held]

    def place(self, store: TieredStore, column: str) -> int:
        """Which column of the cache is this one of a table."""
        return self._held.index(self._lent[store][column])

    # -- a lookup -----------------------------------------------------------------------------------------

    def admit(self, values: Tensor, runs: Runs, out: Tensor) -> Flight:
        """Bring the rows of the ids of these runs to the device, and write their slots to where the ids are in `out`.

        Rows stay as the flight does. An id outside its table stays an id (see `hybridrec.ops.row_cache.runs.told`).
        """
        for store in self.stores:
            store.settle()
        # Behind the one before, and behind what has landed by now: else three batches may be out.
        for moment in (self._admitted, self._touched, self._landed):
            wait(moment, self.device)
        flight = Flight()
        given = values, runs, out, weakref.ref(flight)
        if self._stage is None:
            self._admit(*given, tiers.exchange)
        else:
            with unbroken():  # else rows that leave would stay on their way
                flight.coming = self._lane.do(partial(self._bring, self._stage, *given))
                self._lane.do(self._stage.put_back)
        return flight

    def _admit(self, values: Tensor, runs: Runs, out: Tensor, flight: weakref.ref[Flight], exchange: Any) -> None:
        slots, number = tiers.admit(self.cache, rows_of(values, runs), exchange)
        put_slots(values, runs, slots, self.cache.slots, out)
        self._seen.copy_(self.cache.lasting[: at.LANDED], non_blocking=True)
        self._admitted = now(self.device)
        self._flights.append((flight, _Numbered(number, self._admitted)))

    def _bring(
        self, stage: staged.Stage, values: Tensor, runs: Runs, out: Tensor, flight: weakref.ref[Flight]
    ) -> Any:  # fmt: skip
        """Admit rows that the host hands over; what they need is launched when this returns."""
        self._admit(values, runs, out, flight, stage.exchange)
        if (failure := stage.failed()) is not None:
            raise failure
        return self._admitted

    def land(self) -> None:
        """Rows that no flight needs any more may go, when what was launched until now is done.

        One that is older than another keeps the rows of both.
        """
        last = None
        while self._flights and self._flights[0][0]() is None:
            last = self._flights.popleft()[1]
        if last is not None:
            wait(last.admitted, self.device)  # where nobody looked the block up, nobody has waited for its number
            tiers.land(self.cache, last.number)
            self._landed = now(self.device)
            if last.number.is_cuda:
                last.number.record_stream(torch.cuda.current_stream(self.device))

    def watch(self) -> None:
        """Raise if an admission that is done was refused, or a file was cut; nobody waits for the device to know."""
        self._check()
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if int(self._seen[at.REFUSED]) > self._told and not capturing:
            self.check()

    def check(self) -> None:
        """Raise if any admission was refused; waits for the last one."""
        self._lane.wait()
        if self._admitted is not None:
            self._admitted.synchronize()
        refused, lack = int(self._seen[at.REFUSED]), int(self._seen[at.LACK])
        if refused > self._told:
            self._told = refused
            names, slots = [repr(store.table.name) for store in self.stores], self.cache.slots
            told = f"table {names[0]} has" if len(names) == 1 else f"tables {', '.join(names)} together have"
            give = "it" if len(names) == 1 else "them together"
            raise ValueError(
                f"{told} {slots:,} rows on {self.device}, and the batches in flight needed {lack:,} more: an earlier "
                f"lookup took its rows for zeros, and none was lost or changed. Give {give} cache={slots + lack} or "
                "more, smaller batches, or a step after each of them"
            )

    def figures(self) -> Figures:
        """What happened so far, in all admissions; waits for them."""
        self._lane.wait()
        wait(self._admitted, self.device)
        return self.cache.figures()

    # -- rows by their numbers ----------------------------------------------------------------------------

    def read(self, column: int, rows: Tensor) -> Tensor:
        """Rows [n, width] of numbers int64 [n] on the device; zeros where there is none."""
        self._rest()
        return (tiers if self._stage is None else staged).read(self.cache, column, rows)

    def write(self, column: int, rows: Tensor, values: Tensor) -> None:
        """Give different rows other values."""
        self._rest()
        (tiers if self._stage is None else staged).write(self.cache, column, rows, values)
        self.touch()

    def _rest(self) -> None:
        """Rows that were on their way are there, for what is launched from now on."""
        self._lane.wait()
        if self._stage is not None:
            self._check()
        wait(self._admitted, self.device)

    def touch(self) -> None:
        """Admissions are to come after what was launched until now."""
        self._touched = now(self.device)


def now(device: torch.device) -> Any:
    """The moment when all that was launched until now is done; None on the CPU."""
    return None if device.type == "cpu" else torch.cuda.current_stream(device).record_event()


def wait(moment: Any, device: torch.device) -> None:
    """What is launched from now on comes after a moment."""
    if moment is not None:
        torch.cuda.current_stream(device).wait_event(moment)
