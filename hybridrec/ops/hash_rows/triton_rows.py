"""Slots of dynamic tables in memory of the device, and the launches that give them out and take them back."""

from __future__ import annotations

from collections.abc import Sequence
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

FOREVER = 2**33  # more steps than there are
LOOKED, JUDGED, SCANNED, EVICTED = 64, 256, 1024, 64  # ids or rows of a program
SCANS = 528  # programs that go over the records of a table


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
    """The slots of one table: what each of them holds, which are free, and the index that leads to them."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        most = policy.capacity
        self.policy = policy
        self.index = hash_index.empty(hash_index.buckets_for(most), device)
        self.ids = torch.zeros(most, dtype=torch.int64, device=device)
        self.touched = torch.full((most,), -1, dtype=torch.int32, device=device)
        counted = most if policy.eviction == "lfu" else 0
        self.counts = torch.zeros(counted, dtype=torch.int32, device=device)
        self.free = torch.arange(most - 1, -1, -1, dtype=torch.int32, device=device)  # the lowest is given first
        self.limit = 0xFFFF if policy.min_count > 0xFF else 0xFF
        width = min(max(1 << 12, 1 << (most - 1).bit_length()), 1 << 24) if policy.min_count > 1 else 0
        self.sketch = torch.zeros(4 * width, dtype=torch.int32, device=device)

    def line(self) -> list[int]:
        """What kernels know of it."""
        p, width = self.policy, len(self.sketch) // 4
        drawn, key = round(p.probability * 2**32), p.key - (p.key >> 63 << 64)
        addresses = [part.data_ptr() for part in (self.ids, self.touched, self.counts, self.free, self.sketch)]
        addresses[4] *= width > 0
        return [*addresses, width, self.limit, p.capacity, KINDS[p.eviction], p.lifetime, drawn, p.min_count, key]


class HashRows:
    """The slots of several tables, prepared together: a batch takes the same launches whatever their number.

    `standing` int64 [T, STANDING] has clocks, sizes and counters; it is on the device, and changes there.
    """

    def __init__(self, policies: Sequence[Policy], device: torch.device) -> None:
        self.device = device
        self.tables = [TableSlots(policy, device) for policy in policies]
        self.indexes = hash_index.lines_of([table.index for table in self.tables], device)
        self.lines = torch.tensor([table.line() for table in self.tables], dtype=torch.int64).to(device)
        self.standing = torch.zeros(len(policies), of.STANDING, dtype=torch.int64, device=device)
        self.lacking = torch.zeros(1, dtype=torch.int32, device=device)
        self._noted: _Noted | None = None

    def find(self, values: Tensor, spans: Spans) -> Tensor:
        """The slots int64 [N] of ids, NO_ID where there is no row; nothing changes."""
        rows = torch.empty_like(values)
        if spans.programs:
            self._look_up(values, spans, rows, rows, train=False)
        return rows

    def prepare(self, values: Tensor, spans: Spans, *, force: bool = False, evict: bool = True) -> Tensor:
        """The same for training: rows are touched, ids are let in or, by `force`, all come, and others go for them.

        Where too few can go, nobody comes, and FAULTS counts it. Who knows that there is room can do without `evict`.
        """
        rows = torch.empty_like(values)
        if not spans.programs:
            return rows
        noted = self._note(values, spans)
        self._look_up(values, spans, rows, noted.seen, train=True)
        if not force:
            self._tally(spans, noted)
        self._judge(values, spans, rows, noted, force, evict)
        if evict:
            self._evict()
        grid, kind = spans.grid(JUDGED), spans.kind(JUDGED)
        read = values, *spans[:2], self.indexes, self.lines, self.standing, rows
        wanted.bear[grid](
            *(*read, noted.times, noted.places, noted.marks, noted.before, noted.ranks, noted.given, self.lacking),
            **kind,
        )
        kept = noted.words, noted.times, noted.places, noted.sums, noted.olds, noted.marks, noted.given
        wanted.fill_in[grid](*read, *kept, **kind)
        wanted.close_batch[(len(self.tables),)](self.standing)
        return rows

    def _look_up(self, values: Tensor, spans: Spans, rows: Tensor, seen: Tensor, train: bool) -> None:
        of_tables = self.indexes, self.lines, self.standing
        wanted.look_up[spans.grid(LOOKED)](
            values, *spans[:2], *of_tables, rows, seen, TRAIN=train, **spans.kind(LOOKED)
        )

    def _tally(self, spans: Spans, noted: _Noted) -> None:
        parts = max(1, spans.ids // LOOKED)
        wanted.tally[(len(spans.features),)](*spans[:2], noted.seen, self.standing, PARTS=parts, N=256)

    def _judge(self, values: Tensor, spans: Spans, rows: Tensor, noted: _Noted, force: bool, evict: bool) -> None:
        grid, kind = spans.grid(JUDGED), spans.kind(JUDGED)
        kept = noted.words, noted.times, noted.places
        wanted.want[grid](values, *spans[:2], self.indexes, rows, *kept, len(noted.words), **kind)
        wanted.judge[grid](
            *(values, *spans[:2], self.indexes, self.lines, self.standing, rows, *kept),
            *(noted.sums, noted.olds, noted.marks, noted.fresh),
            FORCE=force, **kind,
        )  # fmt: skip
        torch.cumsum(noted.fresh[: grid[0]], 0, out=noted.before[1 : grid[0] + 1])
        count = len(spans.features)
        wanted.make_room[(len(self.tables),)](
            *(*spans[:2], self.lines, self.standing, noted.before, noted.ranks),
            FORCE=force, EVICT=evict, PARTS=max(1, spans.ids // JUDGED), F=count,
            WIDTH=triton.next_power_of_2(count),
        )  # fmt: skip

    def _evict(self) -> None:
        count = len(self.tables)
        longest = max(table.policy.capacity for table in self.tables)
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
        size = len(values), spans.grid(LOOKED)[0], spans.grid(JUDGED)[0], len(spans.features)
        if self._noted is None or not self._noted.holds(*size):
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
        slots = self._unaged(table, ids)
        found = slots[slots >= 0]
        hash_index.erase(ids, slots, self._one(table, len(ids)), self.indexes)
        here, standing = self.tables[table], self.standing[table]
        here.touched[found] = -1
        free = here.policy.capacity - int(standing[of.SIZE])
        here.free[free : free + len(found)] = found.int()
        standing[of.SIZE] -= len(found)

    def _unaged(self, table: int, ids: Tensor) -> Tensor:
        """The slots of ids, those of expired rows too."""
        return hash_index.find(ids, self._one(table, len(ids)), self.indexes)

    def _one(self, table: int, count: int) -> Spans:
        return of_counts([count], [table], self.device)


class _Noted:
    """Memory of a batch that is being prepared."""

    def __init__(self, ids: int, looked: int, judged: int, features: int, device: torch.device) -> None:
        room = max(256, 2 << (ids - 1).bit_length())

        def made(count: int, dtype: torch.dtype = torch.int32, value: Any = 0) -> Tensor:
            return torch.full((count,), value, dtype=dtype, device=device)

        self._size = ids, looked, judged, features
        self.words, self.times = made(room, torch.int64, of.EMPTY), made(room)
        self.sums, self.olds, self.given = made(room), made(room), made(room, torch.int64)
        self.places, self.marks = made(ids), made(ids, torch.int8)
        self.seen, self.fresh, self.before = made(2 * looked), made(judged), made(judged + 1)
        self.ranks = made(features, torch.int64)

    def holds(self, ids: int, looked: int, judged: int, features: int) -> bool:
        return all(kept >= now for kept, now in zip(self._size, (ids, looked, judged, features), strict=True))
