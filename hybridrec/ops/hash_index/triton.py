"""The index on the GPU: ids of all tables of a block are found, put in or taken out by one launch.

A program has a few ids; each reads one bucket, a line of the cache, sixteen lanes wide. README.md has the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import of as feature
from hybridrec.ops.hash_index.lines import of
from hybridrec.ops.hash_index.spans import Spans
from hybridrec.ops.row_groups import triton as groups

FOUND = 64  # ids that a program looks for
PUT = 256  # ids that a program puts in
LOAD = 0.75  # entries in use by entries, when as many rows are there as an index was made for


@triton.jit
def hash_id(id):
    """The finalizer of MurmurHash3, uint64."""
    h = id.to(tl.uint64)
    h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCD
    h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53
    return h ^ (h >> 33)


@triton.jit
def _home(hash, buckets):
    return (((hash >> 32) * buckets.to(tl.uint64)) >> 32).to(tl.int64)


@triton.jit
def _keys(index):
    """An index as numbers of 8 bytes, aligned, so that a thread reads two of them at a time."""
    return tl.multiple_of(index.to(tl.pointer_type(tl.int64)), 16)


@triton.jit
def _within(bucket, buckets):
    """Buckets that are less than twice as many on: after the last comes the first."""
    return tl.where(bucket < buckets, bucket, bucket - buckets)


@triton.jit
def ids_of_program(features, first_programs, IDS: tl.constexpr, N: tl.constexpr, F: tl.constexpr, STEPS: tl.constexpr):
    """The feature of N ids of a program, its table, where the ids are in the block, and which of them are ids.

    IDS are those that the spans give a program; as many programs as they take share them.
    """
    PARTS: tl.constexpr = IDS // N
    program = tl.program_id(0) // PARTS
    number = groups.feature_of(first_programs, program, F, STEPS)
    line = features + number * feature.LENGTH
    i = (program - tl.load(first_programs + number)) * IDS + tl.program_id(0) % PARTS * N + tl.arange(0, N)
    table = tl.load(line + feature.TABLE)
    return number, table, tl.load(line + feature.START) + i, i < tl.load(line + feature.COUNT)


@triton.jit
def index_of(tables, table, which):
    """The buckets of a table, and how many there are: 0 those that it has, 1 those that entries are moving from."""
    line = tables + table * of.LENGTH + which * of.OLD
    return tl.multiple_of(tl.load(line + of.ADDRESS).to(tl.pointer_type(tl.int32)), 16), tl.load(line + of.BUCKETS)


@triton.jit
def search(index, buckets, id, open, ENTRY: tl.constexpr = False):
    """The slots int32 [N] of ids, FREE where there is none; and, if asked for, in which bucket and lane they are."""
    lane = tl.arange(0, of.KEYS)[None, :]
    bucket = _home(hash_id(id), buckets)
    slot = tl.full(id.shape, of.FREE, tl.int32)
    at = tl.zeros(id.shape, tl.int64)
    left = buckets  # all of them may have been full some time
    while (left > 0) & (tl.max(open.to(tl.int32)) > 0):
        there = open[:, None] & (lane < of.ENTRIES)
        keys = tl.load(_keys(index) + bucket[:, None] * of.KEYS + lane, mask=there, other=0)
        slots = tl.load(index + bucket[:, None] * of.WORDS + of.SLOTS + lane, mask=there, other=of.FREE)
        passed = tl.load(index + bucket * of.WORDS + of.PASSED, mask=open, other=0)
        same = (keys == id[:, None]) & (slots >= 0)
        slot = tl.maximum(slot, tl.max(tl.where(same, slots, of.FREE), 1))
        if ENTRY:
            at = tl.maximum(at, tl.max(tl.where(same, bucket[:, None] * of.KEYS + lane, 0), 1))
        open = open & (slot < 0) & (passed > 0)
        left -= 1
        bucket = _within(bucket + 1, buckets)
    return slot, at


@triton.jit
def search_both(tables, table, id, open):
    """The slots int32 [N] of ids, of which those that have not moved are found where they were; FREE of others."""
    slot = tl.full(id.shape, of.FREE, tl.int32)
    for which in range(2):
        index, buckets = index_of(tables, table, which)
        if buckets > 0:
            found, _entry = search(index, buckets, id, open & (slot < 0))
            slot = tl.maximum(slot, found)
    return slot


@triton.jit
def _line(index, bucket):
    """Where buckets begin."""
    return index + bucket.to(tl.int64) * of.WORDS


@triton.jit
def _go_on(index, buckets, bucket, full, left):
    """How far ids go on from buckets that are full, and what is taken there; they count where they go past.

    AHEAD buckets are looked at together, or those that are left: a program waits for the longest way of its ids.
    """
    step = tl.arange(0, of.AHEAD)[None, :]
    there = full[:, None] & (step < left[:, None])
    taken = tl.load(_line(index, _within(bucket[:, None] + step + 1, buckets)) + of.TAKEN, mask=there, other=0)
    last = tl.min(tl.where(taken == of.ALL, of.AHEAD - 1, step), 1)  # the first that has room, or that was looked at
    passed = _line(index, _within(bucket[:, None] + step, buckets)) + of.PASSED
    tl.atomic_add(passed, 1, mask=there & (step <= last[:, None]), sem="relaxed")
    taken = tl.max(tl.where(step == last[:, None], taken, 0), 1)
    return tl.where(full, last + 1, 0), taken


@triton.jit
def put(index, buckets, id, slot, open):
    """Entries for ids that have none, each of them once; those for which there is no room stay open."""
    hash, buckets = hash_id(id), buckets.to(tl.int32)  # half the registers; no card has room for more of them
    bucket = _home(hash, buckets).to(tl.int32)
    first = tl.full(id.shape, 1, tl.int32) << (hash.to(tl.uint32) % of.ENTRIES).to(tl.int32)
    left = tl.zeros(id.shape, tl.int32) + buckets
    trying = open
    taken = tl.load(_line(index, bucket) + of.TAKEN, mask=trying, other=0)  # or more by now, never less
    while tl.max(trying.to(tl.int32)) > 0:
        full = trying & (taken == of.ALL)
        line = _line(index, bucket)
        bit = tl.where((taken & first) == 0, first, (taken + 1) & ~taken)  # or the lowest that was free
        claims = trying & (full == 0)
        before = tl.atomic_or(line + of.TAKEN, bit, mask=claims, sem="relaxed")
        step, ahead = _go_on(index, buckets, bucket, full, left)
        won = claims & ((before & bit) == 0)
        lane = (bit.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127  # the exponent of a power of two
        tl.store(_keys(index) + bucket.to(tl.int64) * of.KEYS + lane, id, mask=won)
        tl.store(line + of.SLOTS + lane, slot, mask=won)
        left -= step
        open, trying = open & (won == 0), trying & (won == 0) & (left > 0)
        bucket = _within(bucket + step, buckets)
        taken = tl.where(full, ahead, before)
    return open


@triton.jit
def remove(index, buckets, id, slot, open):
    """The entries of ids that have these slots become free, and count no longer where they went past."""
    found, entry = search(index, buckets, id, open, ENTRY=True)
    open = open & (found == slot)
    last, lane = entry // of.KEYS, (entry % of.KEYS).to(tl.int32)
    line = index + last * of.WORDS
    tl.store(line + of.SLOTS + lane, tl.full(lane.shape, of.FREE, tl.int32), mask=open)
    tl.atomic_and(line + of.TAKEN, ~(tl.full(lane.shape, 1, tl.int32) << lane), mask=open, sem="relaxed")
    bucket = _home(hash_id(id), buckets)
    open = open & (bucket != last)
    while tl.max(open.to(tl.int32)) > 0:
        tl.atomic_add(index + bucket * of.WORDS + of.PASSED, -1, mask=open, sem="relaxed")
        bucket = _within(bucket + 1, buckets)
        open = open & (bucket != last)


@triton.jit
def remove_both(tables, table, id, slot, open):
    """The same in the index of a table and in that which entries are moving from: those that have moved are in both."""
    for which in range(2):
        index, buckets = index_of(tables, table, which)
        if buckets > 0:
            remove(index, buckets, id, slot, open)


@triton.jit
def find_slots(
    values,  # int64 [N]
    features,  # int64 [F, LENGTH]
    first_programs,  # int32 [F + 1]
    tables,  # int64 [T, LENGTH]
    slots,  # int64 [N]: the slot of each id, NO_ID where there is none
    IDS: tl.constexpr,
    N: tl.constexpr,
    F: tl.constexpr,
    STEPS: tl.constexpr,
):
    _feature, table, at, mask = ids_of_program(features, first_programs, IDS, N, F, STEPS)
    _index, buckets = index_of(tables, table, 0)
    id = tl.load(values + at, mask=mask, other=feature.NO_ID)
    if buckets > 0:
        slot = search_both(tables, table, id, mask & (id != feature.NO_ID))
        id = tl.where(slot >= 0, slot.to(tl.int64), feature.NO_ID)
    tl.store(slots + at, id, mask=mask)


@triton.jit
def insert_slots(
    values,
    slots,  # int64 [N]: negative ones are passed over
    features,
    first_programs,
    tables,
    lacking,  # int32 [1]: ids that found no room, added up
    IDS: tl.constexpr,
    N: tl.constexpr,
    F: tl.constexpr,
    STEPS: tl.constexpr,
):
    _feature, table, at, mask = ids_of_program(features, first_programs, IDS, N, F, STEPS)
    index, buckets = index_of(tables, table, 0)
    slot = tl.load(slots + at, mask=mask, other=of.FREE)
    new = slot >= 0
    if (buckets > 0) & (tl.max(slot) >= 0):
        left = put(index, buckets, tl.load(values + at, mask=new, other=0), slot.to(tl.int32), new)
        count = tl.sum(left.to(tl.int32))
        if count > 0:
            tl.atomic_add(lacking, count, sem="relaxed")


@triton.jit
def erase_slots(
    values, slots, features, first_programs, tables,
    IDS: tl.constexpr, N: tl.constexpr, F: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    _feature, table, at, mask = ids_of_program(features, first_programs, IDS, N, F, STEPS)
    slot = tl.load(slots + at, mask=mask, other=of.FREE)
    if tl.max(slot) >= 0:
        remove_both(tables, table, tl.load(values + at, mask=slot >= 0, other=0), slot, slot >= 0)


@triton.jit(do_not_specialize=["first", "last", "buckets"])  # an index of one bucket is no case of its own
def move_entries(source, first, last, index, buckets, lacking, N: tl.constexpr):
    """Entries of the buckets `first` … `last` - 1 of one index into another, that has none of their ids."""
    entry = (first.to(tl.int64) + tl.program_id(0) * (N // of.KEYS)) * of.KEYS + tl.arange(0, N)
    bucket, lane = entry // of.KEYS, entry % of.KEYS
    line = source + bucket * of.WORDS
    slot = tl.load(line + of.SLOTS + lane, mask=(bucket < last) & (lane < of.ENTRIES), other=of.FREE)
    id = tl.load(_keys(source) + entry, mask=slot >= 0, other=0)
    left = tl.sum(put(index, buckets.to(tl.int64), id, slot, slot >= 0).to(tl.int32))
    if left > 0:
        tl.atomic_add(lacking, left, sem="relaxed")


# -- launches -------------------------------------------------------------------------------------------------


def buckets_for(rows: int, load: float = LOAD) -> int:
    """The buckets of an index for so many rows.

    >>> buckets_for(75), buckets_for(76), buckets_for(0)
    (10, 11, 1)
    """
    of_bucket = of.ENTRIES * load
    whole = int(rows / of_bucket)
    return max(1, whole + (whole * of_bucket < rows))


def empty(buckets: int, device: torch.device) -> Tensor:
    """An index without entries, int32 [buckets, 32]."""
    return clear(torch.empty(buckets, of.WORDS, dtype=torch.int32, device=device))


def clear(index: Tensor) -> Tensor:
    """The same index without its entries."""
    index.zero_()[:, of.SLOTS : of.TAKEN] = of.FREE
    return index


def index_line(index: Tensor | None, old: Tensor | None = None) -> list[int]:
    """What kernels know of a table with this index, or with none, and of that which entries are moving from."""
    found = [(0, 0) if each is None else (each.data_ptr(), len(each)) for each in (index, old)]
    return [*found[0], *found[1]]


def lines_of(
    indexes: Sequence[Tensor | None], device: torch.device, olds: Sequence[Tensor | None] | None = None
) -> Tensor:
    """The lines of tables where kernels read them, int64 [T, LENGTH]."""
    lines = [index_line(*pair) for pair in zip(indexes, olds or [None] * len(indexes), strict=True)]
    return torch.tensor(lines, dtype=torch.int64).to(device)


def find(values: Tensor, spans: Spans, tables: Tensor) -> Tensor:
    """The slot of every id int64 [N], NO_ID where there is none; ids of tables without an index are slots already."""
    slots = torch.empty_like(values)
    if spans.programs:
        find_slots[spans.grid(FOUND)](values, *spans[:2], tables, slots, **spans.kind(FOUND))
    return slots


def insert(values: Tensor, slots: Tensor, spans: Spans, tables: Tensor, lacking: Tensor) -> None:
    """Give ids that their table does not have, each of them once, these slots; one that is negative says not to.

    `lacking` int32 [1] counts those for which their index has no room.
    """
    if spans.programs:
        insert_slots[spans.grid(PUT)](values, slots, *spans[:2], tables, lacking, **spans.kind(PUT))


def erase(values: Tensor, slots: Tensor, spans: Spans, tables: Tensor) -> None:
    """Forget ids, each of them once, that have these slots; others, and negative slots, are passed over."""
    if spans.programs:
        erase_slots[spans.grid(FOUND)](values, slots, *spans[:2], tables, **spans.kind(FOUND))


def rehash(index: Tensor, into: Tensor, lacking: Tensor, first: int = 0, last: int | None = None) -> None:
    """The entries of an index, or of some buckets of it, into another one, of any size, that has none of their ids."""
    last = len(index) if last is None else last
    programs = triton.cdiv((last - first) * of.KEYS, PUT)
    move_entries[(programs,)](index, first, last, into, len(into), lacking, N=PUT)
