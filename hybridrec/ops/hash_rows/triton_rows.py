"""Slots of dynamic tables in memory of the device, and the launches that give them out and take them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from hybridrec.ops.hash_index import triton as hash_index
from hybridrec.ops.hash_index.spans import Spans, of_counts
from hybridrec.ops.hash_rows import triton_lowest as lowest
from hybridrec.ops.hash_rows import triton_wanted as wanted
from hybridrec.ops.hash_rows.lines import COUNTERS, KINDS, of
from hybridrec.ops.reserved import Column, grow_all

FOREVER = 2**33  # more steps than there are
LOOKED, SCANNED, EVICTED = of.LOOKED, 1024, 64  # ids or rows of a program
FEW, JUDGED, JUDGED_OF_MANY = 1 << 21, 128, 512  # ids of a batch, and of a program that gives them rows
SCANS = 528  # programs that go over the records of a table
SLICE = 1 << 16  # buckets whose entries a training lookup moves to a larger index: half a million, some 0.2 ms
HASTE = 3  # ids of it for which one bucket more moves


@dataclass(frozen=True)
class Policy:
    """Who comes into a table, and who goes for it: as csrc/hash_table.h has it."""

    capacity: int
    eviction: str = "lru"
    lifetime: int = FOREVER
    probability: float = 1.0
    min_count: int = 0
    key: int = 0  # of draws


class TableSlots:
    """The slots of one table: what each of them holds, which are free, and the index that leads to them.

    There are as many as the table may hold, or fewer, which grow where they lie, up to `reach`; `standing` int64
    [STANDING] is what is counted.
    """

    def __init__(
        self, policy: Policy, device: torch.device, slots: int | None = None, reach: int | None = None
    ) -> None:
        self.policy, self.device = policy, device
        self.standing = torch.zeros(of.STANDING, dtype=torch.int64, device=device)
        self.limit = 0xFFFF if policy.min_count > 0xFF else 0xFF
        most = policy.capacity
        width = min(max(1 << 12, 1 << (most - 1).bit_length()), 1 << 24) if policy.min_count > 1 else 0
        self.sketch = torch.zeros(4 * width, dtype=torch.int32, device=device)
        kinds = {"ids": torch.int64, "touched": torch.int32, "free": torch.int32}
        kinds |= {"counts": torch.int32} if policy.eviction == "lfu" else {}
        reach = most if reach is None else reach
        self._columns = {name: Column(reach, (), dtype, device) for name, dtype in kinds.items()}
        self.slots = self.room = 0  # those that have memory, and the rows that the index is made for
        self.moving: Tensor | None = None  # the index that entries are moving from
        self.done = 0  # buckets of it from which they have
        self.grow(most if slots is None else min(slots, most))

    @torch.inference_mode(False)  # an index that is made where gradients are off is cleared where they are not
    def grow(self, slots: int, beside: Sequence[Column] = ()) -> None:
        """Memory for so many slots, here and in other columns; where there is too little, nothing has changed.

        Who needs a larger index has moved all entries to the one that is there. They begin to move to the new one.
        """
        made = self._larger(slots) if slots > self.room else None
        grow_all([*self._columns.values(), *beside], slots)
        if made is not None:
            assert self.moving is None, "entries move from one index at a time"
            self.moving, self.done = (self.index if self.room else None), 0
            self.index, self.room = made
        was, self.slots = self.slots, slots
        self._forget(was)

    def _larger(self, slots: int) -> tuple[Tensor, int]:
        """An index for so many rows, or for half as many again as the last one, so that entries move seldom."""
        room = min(self.policy.capacity, max(slots, self.room * 3 // 2))
        try:
            return hash_index.empty(hash_index.buckets_for(room), self.device), room
        except torch.OutOfMemoryError:
            return hash_index.empty(hash_index.buckets_for(slots), self.device), slots

    def let_old_go(self) -> None:
        """Nothing moves any more."""
        old, self.moving = self.moving, None
        if old is not None and old.is_cuda:
            old.record_stream(torch.cuda.current_stream(old.device))  # which may not be that of who made it

    def _forget(self, first: int) -> None:
        """No row has the slots from the first on."""
        self.ids[first:] = 0
        self.touched[first:] = -1
        self.counts[first:] = 0
        torch.arange(first, self.slots, out=self.free[first:])  # the lowest is given first

    @property
    def ids(self) -> Tensor:
        return self._columns["ids"].tensor

    @property
    def touched(self) -> Tensor:
        return self._columns["touched"].tensor

    @property
    def free(self) -> Tensor:
        return self._columns["free"].tensor

    @property
    def counts(self) -> Tensor:
        return self._columns["counts"].tensor if "counts" in self._columns else self.touched[:0]

    def bytes(self) -> tuple[int, int, int]:
        """What keys, index and scores take."""
        sizes = {name: column.nbytes for name, column in self._columns.items()}
        scores = sizes["touched"] + sizes.get("counts", 0)
        index = self.index.nbytes + (0 if self.moving is None else self.moving.nbytes)
        return sizes["ids"], index + sizes["free"], scores

    def line(self) -> list[int]:
        """What kernels know of it."""
        p, width = self.policy, len(self.sketch) // 4
        drawn, key = round(p.probability * 2**32), p.key - (p.key >> 63 << 64)
        addresses = [part.data_ptr() for part in (self.ids, self.touched, self.counts, self.free, self.sketch)]
        addresses[4] *= width > 0
        policy = p.capacity, KINDS[p.eviction], p.lifetime, drawn, p.min_count, key
        return [*addresses, width, self.limit, *policy, self.slots]

    @property
    def sketch_bytes(self) -> int:
        """The size of the sketch in files: a count has one byte there, or two beyond 255."""
        return len(self.sketch) * (1 + (self.limit > 0xFF))

    def saved_sketch(self) -> Tensor | None:
        """What files keep of the sketch, uint8 on the CPU, where the table has one."""
        if not len(self.sketch):
            return None
        wide = self.limit > 0xFF
        return self.sketch.cpu().to(torch.int16).view(torch.uint8) if wide else self.sketch.cpu().to(torch.uint8)

    def load_sketch(self, saved: Tensor) -> None:
        """Go on from what a file has kept."""
        cells = saved.contiguous().view(torch.uint8).flatten()
        if len(cells) != self.sketch_bytes:
            raise ValueError(
                f"a sketch of {len(cells)} bytes does not fit a table whose sketch has {self.sketch_bytes}; keep its "
                "capacity and minimum count"
            )
        self.sketch.copy_(cells.view(torch.int16).int() & 0xFFFF if self.limit > 0xFF else cells.int())

    def clear(self) -> None:
        """Forget all ids, and what the sketch has counted; clock and counters stay."""
        hash_index.clear(self.index)
        self.let_old_go()
        self._forget(0)
        self.sketch.zero_()
        self.standing[of.SIZE] = 0


class HashRows:
    """The slots of several tables, prepared together: a batch takes the same launches whatever their number.

    Tables have the numbers by which lines of features name them, below `count`; ids of others are slots already.
    `standing` int64 [count, STANDING] has clocks, sizes and counters; it is on the device, and changes there. A table
    is in one of these at a time, and in the `part` of it.
    """

    def __init__(self, tables: Mapping[int, TableSlots], count: int, device: torch.device) -> None:
        self.device, self.tables, self.count = device, dict(tables), count
        self.standing = torch.zeros(count, of.STANDING, dtype=torch.int64, device=device)
        for number, table in self.tables.items():
            table.standing = self.standing[number].copy_(table.standing)
        self.lacking = torch.zeros(1, dtype=torch.int32, device=device)
        self._noted: _Noted | None = None
        self.indexes = torch.zeros(count, hash_index.of.LENGTH, dtype=torch.int64, device=device)
        self.lines = torch.zeros(count, of.LENGTH, dtype=torch.int64, device=device)
        self.moved()

    @classmethod
    def empty(cls, policies: Sequence[Policy], device: torch.device) -> HashRows:
        """Tables without rows, with memory for all that they may hold."""
        return cls({n: TableSlots(policy, device) for n, policy in enumerate(policies)}, len(policies), device)

    def part(self, table: int) -> HashRows:
        """One of these tables for itself, in the same memory."""
        made = object.__new__(HashRows)
        made.device, made.tables, made.count = self.device, {0: self.tables[table]}, 1
        made.lacking, made._noted = self.lacking, None
        made.standing, made.indexes, made.lines = (
            whole[table : table + 1] for whole in (self.standing, self.indexes, self.lines)
        )
        return made

    def moved(self) -> None:
        """Tables have more memory, or another index: kernels know it that are launched from now on."""
        found = [self.tables.get(number) for number in range(self.count)]
        pairs = [(None, None) if table is None else (table.index, table.moving) for table in found]
        indexes = [hash_index.index_line(*pair) for pair in pairs]
        lines = [[0] * of.LENGTH if table is None else table.line() for table in found]
        for numbers, there in ((indexes, self.indexes), (lines, self.lines)):
            sent = torch.tensor(numbers, dtype=torch.int64, pin_memory=there.is_cuda)
            there.copy_(sent, non_blocking=True)  # the memory of `sent` is used anew only when it has been read

    def grow(self, table: int, slots: int, beside: Sequence[Column] = ()) -> None:
        """Memory for more rows of a table, and in columns that hold more of them; nobody waits for the device.

        Nothing that is there moves, but for entries of the index, in slices, at the training lookups that follow. Where
        there is too little, nothing has changed.
        """
        grown = self.tables[table]
        if slots > grown.room:
            self.finish(table)
        grown.grow(slots, beside)
        self.moved()

    def finish(self, table: int) -> None:
        """Move all entries that have not moved yet to the index of a table."""
        here = self.tables[table]
        if here.moving is not None:
            self._move(here, len(here.moving))
            self.moved()

    def _move_on(self, left: int) -> None:
        """Move entries of so many buckets, of whatever tables have some that have not moved.

        That is when a batch is done, so that lookups while entries move are compiled when a table grows first: early.
        """
        moving = list(self._moving())
        for table in moving:
            left -= self._move(table, left)
        if any(table.moving is None for table in moving):
            self.moved()

    def _moving(self) -> Iterator[TableSlots]:
        return (table for table in self.tables.values() if table.moving is not None)

    def _move(self, table: TableSlots, most: int) -> int:
        """Move the entries of so many buckets; how many that were. Call `moved` when they were the last."""
        old, first = table.moving, table.done
        assert old is not None, "entries are moving"
        table.done = min(len(old), first + most)
        if table.done > first:
            hash_index.rehash(old, table.index, self.lacking, first, table.done)
        if table.done == len(old):
            table.let_old_go()
        return table.done - first

    def find(self, values: Tensor, spans: Spans) -> Tensor:
        """The slots int64 [N] of ids, NO_ID where there is no row; nothing changes."""
        rows = torch.empty_like(values)
        if spans.programs:
            self._look_up(values, spans, rows, rows, rows, train=False)
        return rows

    def prepare(
        self, values: Tensor, spans: Spans, *, force: bool = False, evict: bool = True, homes: Tensor | None = None
    ) -> Tensor:
        """The same for training: rows are touched, ids are let in or, by `force`, all come, and others go for them.

        Where too few can go, nobody comes, and FAULTS counts it. Who knows that there is room can do without `evict`.
        With `homes` int64 [T, LENGTH] new rows hold what they begin with.
        """
        rows = torch.empty_like(values)
        if not spans.programs:
            return rows
        noted, self._noted = self._note(values, spans), None  # it is not clean where a batch is broken off
        self._look_up(values, spans, rows, noted.found, noted.missed, train=True)
        if not force:
            self._tally(spans, noted)
        self._judge(values, spans, rows, noted, force, evict)
        if evict:
            self._evict()
        try:
            self._bear(values, spans, rows, noted, homes)
        finally:  # lest slots are given twice
            wanted.close_batch[(self.count,)](self.standing)
        self._noted = noted
        self._move_on(slice_for(len(values)))
        return rows

    def _bear(self, values: Tensor, spans: Spans, rows: Tensor, noted: _Noted, homes: Tensor | None) -> None:
        grid, kind = spans.grid(_judged(spans)), _kind(spans)
        read, of_tables = (values, *spans[:2], noted.missed), (self.indexes, self.lines, self.standing, rows)
        kept = noted.words, noted.times, noted.places, noted.sums, noted.olds, noted.marks, noted.before, noted.ranks
        wanted.bear[grid](
            *(*read, *of_tables, *kept, self.lacking, self.lines if homes is None else homes),
            BEGIN=homes is not None, **kind,
        )  # fmt: skip
        wanted.fill_in[grid](*spans[:2], self.standing, rows, noted.places, noted.repeats, **kind)

    def _look_up(self, values: Tensor, spans: Spans, rows: Tensor, found: Tensor, missed: Tensor, train: bool) -> None:
        of_tables = self.indexes, self.lines, self.standing
        kind = {"TRAIN": train, "MOVING": any(self._moving()), **spans.kind(LOOKED)}
        wanted.look_up[spans.grid(LOOKED)](values, *spans[:2], *of_tables, rows, found, missed, **kind)

    def _tally(self, spans: Spans, noted: _Noted) -> None:
        parts = max(1, spans.ids // LOOKED)
        wanted.tally[(len(spans.features),)](*spans[:2], noted.found, noted.missed, self.standing, PARTS=parts, N=2048)

    def _judge(self, values: Tensor, spans: Spans, rows: Tensor, noted: _Noted, force: bool, evict: bool) -> None:
        grid, kind = spans.grid(_judged(spans)), _kind(spans)
        kept = noted.words, noted.times, noted.places
        read = values, *spans[:2], noted.missed, self.lines
        wanted.want[grid](*read, rows, *kept, len(noted.words), **kind)
        wanted.judge[grid](
            *(*read, self.standing, rows, *kept),
            *(noted.sums, noted.olds, noted.marks, noted.fresh, noted.repeats),
            FORCE=force, **kind,
        )  # fmt: skip
        torch.cumsum(noted.fresh[: grid[0]], 0, out=noted.before[1 : grid[0] + 1])
        count = len(spans.features)
        wanted.make_room[(self.count,)](
            *(*spans[:2], self.lines, self.standing, noted.before, noted.ranks),
            FORCE=force, EVICT=evict, PARTS=max(1, spans.ids // _judged(spans)), F=count,
            WIDTH=triton.next_power_of_2(count),
        )  # fmt: skip

    def _evict(self) -> None:
        count, longest = self.count, max(table.slots for table in self.tables.values())
        scans = min(SCANS, triton.cdiv(longest, SCANNED))
        state = torch.zeros(count, of.PASSES + 1, of.STATE, dtype=torch.int64, device=self.device)
        counted = torch.zeros(count, of.PASSES, of.DIGITS, dtype=torch.int32, device=self.device)
        read, before = (self.lines, self.standing, state, counted), (False, 0)
        for number, (of_id, shift) in enumerate(lowest.DIGITS):
            lowest.count_digits[(scans, count)](
                *(*read, number, shift, before[1], int(before[0])), OF_ID=of_id, N=SCANNED
            )
            before = of_id, shift
        going = torch.empty(count, scans, dtype=torch.int32, device=self.device)
        lowest.count_going[(scans, count)](*read, going, N=SCANNED)
        up_to = going.cumsum(1, dtype=torch.int32)
        lowest.list_going[(scans, count)](self.lines, self.standing, state, up_to, N=SCANNED)
        removals = min(SCANS, triton.cdiv(longest, EVICTED))
        lowest.evict[(removals, count)](self.indexes, self.lines, self.standing, N=EVICTED, num_warps=EVICTED // 32)

    def _note(self, values: Tensor, spans: Spans) -> _Noted:
        """Memory for what is noted of a batch; it is clean again after each, and kept for those that are no larger."""
        size = len(values), spans.grid(LOOKED)[0], spans.grid(_judged(spans))[0], len(spans.features)
        if self._noted is None or not self._noted.holds(*size):
            with torch.inference_mode(False):  # it is written outside of it too
                self._noted = _Noted(*size, self.device)
        return self._noted

    # -- on the host --------------------------------------------------------------------------------------

    def advance(self, table: int | None = None) -> None:
        """A training step is over: nothing is pinned any more."""
        (self.standing if table is None else self.standing[table : table + 1])[:, of.CLOCK] += 1

    def counters(self, table: int) -> dict[str, int]:
        """What happened so far, by name; waits for the device."""
        numbers = self.standing[table].tolist()
        return {name: numbers[place] for name, place in COUNTERS.items()}

    def erase(self, table: int, ids: Tensor) -> None:
        """Forget ids, each of which comes once; those that are not there are passed over."""
        slots = self.unaged(table, ids)
        found = slots[slots >= 0]
        hash_index.erase(ids, slots, self.one(table, len(ids)), self.indexes)
        here, standing = self.tables[table], self.standing[table]
        here.touched[found] = -1
        size = int(standing[of.SIZE])
        here.free[size - len(found) : size] = found.flip(0).int()  # the last is given first
        standing[of.SIZE] -= len(found)

    def unaged(self, table: int, ids: Tensor) -> Tensor:
        """The slots of ids, those of expired rows too."""
        return hash_index.find(ids, self.one(table, len(ids)), self.indexes)

    def one(self, table: int, count: int) -> Spans:
        """Ids of one table alone."""
        return of_counts([count], [table], self.device)


def slice_for(ids: int) -> int:
    """Buckets whose entries move after a batch of so many ids.

    An index for N rows has N / 7.5 buckets, and that which its entries move to is for N / 2 more rows: all have moved
    before it is too small where one does for 3.75 new ids, or for fewer.
    """
    return SLICE + ids // HASTE


def _judged(spans: Spans) -> int:
    """Ids of a program that gives them rows: few, since it waits for the slowest; or more, since each is started."""
    return JUDGED if spans.programs * spans.ids <= FEW else JUDGED_OF_MANY


def _kind(spans: Spans) -> dict[str, int]:
    """What those launches are compiled for: an id has one thread, or another might load what that has stored."""
    kind = spans.kind(_judged(spans))
    return {**kind, "num_warps": max(1, kind["N"] // 32)}


class _Noted:
    """Memory of a batch that is being prepared."""

    def __init__(self, ids: int, looked: int, judged: int, features: int, device: torch.device) -> None:
        room = max(256, 4 << (ids - 1).bit_length())

        def made(count: int, dtype: torch.dtype = torch.int32, value: Any = 0) -> Tensor:
            return torch.full((count,), value, dtype=dtype, device=device)

        self._size = ids, looked, judged, features
        self.words, self.times = made(room, torch.int64, of.EMPTY), made(room)
        self.places, self.sums, self.olds, self.marks = made(ids), made(ids), made(ids), made(ids, torch.int8)
        self.found, self.missed = made(looked), made(looked)
        self.fresh, self.repeats, self.before = made(judged), made(judged), made(judged + 1)
        self.ranks = made(features, torch.int64)

    def holds(self, ids: int, looked: int, judged: int, features: int) -> bool:
        return all(kept >= now for kept, now in zip(self._size, (ids, looked, judged, features), strict=True))
